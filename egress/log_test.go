package egress_test

import (
	"io"
	"log/slog"
)

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
