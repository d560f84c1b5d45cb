package filter_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"

	"shoal/docker/filter"
)

// A policy judges requests; what it admits is written anew for the engine.
func ExamplePolicy_Judge() {
	policy, err := filter.DefaultPolicy(filter.Settings{Fleet: "blue"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, line := range []string{
		"POST /v1.41/containers/shoal-t1-demo.g1/stop?t=%31%30 HTTP/1.1",
		"POST /v1.41/containers/database/stop HTTP/1.1",
		"GET /v1.41/containers/json HTTP/1.1",
		"POST /v1.41/build HTTP/1.1",
	} {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + "\r\nHost: docker\r\n\r\n")))
		if err != nil {
			fmt.Println(err)
			return
		}
		if call, refusal := policy.Judge(r); refusal != nil {
			fmt.Println(refusal)
		} else {
			fmt.Println(call.Rule, call.Target)
		}
	}
	// Output:
	// container.stop /v1.41/containers/shoal-t1-demo.g1/stop?t=10
	// refused by rule path.name: the path names no container of ours
	// refused by rule query.required: container.list needs the key filters
	// refused by rule path.unknown: there is no such call
}
