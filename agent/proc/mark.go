package proc

// MarkEnv is the environment variable that stands for the mark where commands
// are not hardened, that is in tests.
const MarkEnv = "SHOAL_MARK"
