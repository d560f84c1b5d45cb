package launch

import (
	"fmt"
	"syscall"
)

// Step is a part of a start that can fail.
type Step uint8

// The steps of the launch program, in its order, which is its protocol.
const (
	StepOptions Step = iota + 1
	StepSession
	StepTerminal
	StepLimits
	StepOOMScore
	StepDescriptors
	StepGroups
	StepGID
	StepNoNewPrivs
	StepFilter
	StepUID
	StepCapabilities
	StepDirectory // the working directory: Errno is ENOENT, ENOTDIR, EACCES, …
	StepExec      // the program: Errno is ENOENT, EACCES, ENOEXEC, E2BIG, …
)

// The steps of the agent.
const (
	StepPipes   Step = iota + 64 // making pipes or the terminal
	StepFork                     // making the process: Errno is EAGAIN at the limit of processes
	StepKilled                   // another command killed it before the program was executed
	StepStopped                  // it did not get ready in time: stopped by another command, or starved
)

var stepNames = map[Step]string{
	StepOptions: "options", StepSession: "session", StepTerminal: "terminal",
	StepLimits: "limits", StepOOMScore: "oom score", StepDescriptors: "descriptors",
	StepGroups: "groups", StepGID: "gid", StepNoNewPrivs: "no new privileges",
	StepFilter: "filter", StepUID: "uid", StepCapabilities: "capabilities",
	StepDirectory: "directory", StepExec: "exec",
	StepPipes: "pipes", StepFork: "fork", StepKilled: "killed", StepStopped: "stopped",
}

// String returns the step's name.
func (s Step) String() string {
	if name, ok := stepNames[s]; ok {
		return name
	}
	return fmt.Sprintf("step %d", uint8(s))
}

// StartError says at which step a start failed. Nothing of the command ran.
type StartError struct {
	Step  Step
	Errno syscall.Errno // 0 for StepKilled and StepStopped
}

// Error names step and reason, and nothing of the command.
func (e *StartError) Error() string {
	if e.Errno == 0 {
		return "start: " + e.Step.String()
	}
	return "start: " + e.Step.String() + ": " + e.Errno.Error()
}

// Unwrap returns the kernel's reason, nil when there is none.
func (e *StartError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}
