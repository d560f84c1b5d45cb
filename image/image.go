// Package image names the sandbox image that `make image` builds.
//
// The image itself is made by build.sh from the Dockerfile beside this file; the
// package's test lists what it promises.
package image

import (
	"cmp"
	"os"
)

// Default is the tag under which `make image` leaves the newest image it built,
// and the image of sandboxes that name none.
const Default = "shoal-sandbox:dev"

// Name returns the image to use where nobody chose one: the environment's
// SHOAL_IMAGE, else [Default]. `make test` sets the variable to the tag of this
// tree's own build, so that trees which share an engine do not mix images.
func Name() string { return cmp.Or(os.Getenv("SHOAL_IMAGE"), Default) }
