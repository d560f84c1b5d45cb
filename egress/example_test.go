package egress_test

import (
	"fmt"

	"shoal/egress"
)

func ExampleParsePolicy() {
	policy, err := egress.ParsePolicy([]string{"PyPI.org", "*.example.com:443"}, egress.PolicyOptions{})
	fmt.Println(policy.Hosts(), err)
	_, err = egress.ParsePolicy([]string{"*.com"}, egress.PolicyOptions{})
	fmt.Println(err)
	// Output:
	// [pypi.org *.example.com:443] <nil>
	// egress entry "*.com": this star covers everybody's names under a public suffix; list the hosts
}
