package messaging_test

import (
	"context"
	"fmt"
	"log"

	"shoal/messaging"
	"shoal/sandbox"
)

// A kernel makes a sandbox, runs a command in it, and reads a file.
func Example() {
	c, err := messaging.Connect(natsURL, messaging.Options{Tenant: "main"}, natsOptions...)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx := context.Background()
	err = c.WithSandbox(ctx, messaging.CreateRequest{Name: "demo"}, func(ctx context.Context, box messaging.Target) error {
		if _, err := c.WriteFile(ctx, box.File("/workspace/in.txt"), []byte("21"), sandbox.WriteOptions{}); err != nil {
			return err
		}
		r, err := c.Run(ctx, box, sandbox.Command{Shell: "python3 double.py"}, messaging.RunOptions{})
		if err != nil {
			return err
		}
		fmt.Printf("%sexit code %d\n", r.Stdout, r.Code)
		data, err := c.ReadFile(ctx, box.File("/workspace/in.txt"), sandbox.ReadOptions{}, 1<<20)
		fmt.Printf("%s\n", data)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 42
	// exit code 0
	// 21
}
