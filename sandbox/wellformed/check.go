package wellformed

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed is what every error of [Check] is.
var ErrMalformed = errors.New("malformed msgpack")

// Check reports whether b is exactly one msgpack value, nested at most depth
// deep, whose every length is covered by bytes that are there.
func Check(b []byte, depth int) error {
	rest, err := skipValue(b, depth)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes after the value: %w", len(rest), ErrMalformed)
	}
	return nil
}

// skipValue returns what follows the first value of b.
func skipValue(b []byte, depth int) ([]byte, error) {
	if len(b) == 0 || depth == 0 {
		return nil, fmt.Errorf("cut off or nested too deep: %w", ErrMalformed)
	}
	c, rest := b[0], b[1:]
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3: // small ints, nil, booleans
		return rest, nil
	case c <= 0x8f:
		return skipMany(rest, 2*int(c&0x0f), depth)
	case c <= 0x9f:
		return skipMany(rest, int(c&0x0f), depth)
	case c <= 0xbf:
		return skipBytes(rest, int(c&0x1f))
	}
	return skipSized(c, rest, depth)
}

// firstSized is the first format of sizes.
const firstSized = 0xc4

// sizes are the formats with a length field or of fixed size from firstSized on:
// width of the length field, fixed bytes that follow, values per entry.
var sizes = [...]struct{ length, fixed, values int }{
	0xc4 - firstSized: {length: 1}, 0xc5 - firstSized: {length: 2}, 0xc6 - firstSized: {length: 4}, // bin
	0xc7 - firstSized: {length: 1, fixed: 1}, 0xc8 - firstSized: {length: 2, fixed: 1}, 0xc9 - firstSized: {length: 4, fixed: 1}, // ext
	0xca - firstSized: {fixed: 4}, 0xcb - firstSized: {fixed: 8}, // float
	0xcc - firstSized: {fixed: 1}, 0xcd - firstSized: {fixed: 2}, 0xce - firstSized: {fixed: 4}, 0xcf - firstSized: {fixed: 8}, // uint
	0xd0 - firstSized: {fixed: 1}, 0xd1 - firstSized: {fixed: 2}, 0xd2 - firstSized: {fixed: 4}, 0xd3 - firstSized: {fixed: 8}, // int
	0xd4 - firstSized: {fixed: 2}, 0xd5 - firstSized: {fixed: 3}, 0xd6 - firstSized: {fixed: 5}, 0xd7 - firstSized: {fixed: 9}, 0xd8 - firstSized: {fixed: 17}, // fixext
	0xd9 - firstSized: {length: 1}, 0xda - firstSized: {length: 2}, 0xdb - firstSized: {length: 4}, // str
	0xdc - firstSized: {length: 2, values: 1}, 0xdd - firstSized: {length: 4, values: 1}, // array
	0xde - firstSized: {length: 2, values: 2}, 0xdf - firstSized: {length: 4, values: 2}, // map
}

func skipSized(c byte, b []byte, depth int) ([]byte, error) {
	if c < firstSized || int(c-firstSized) >= len(sizes) {
		return nil, fmt.Errorf("format %#x: %w", c, ErrMalformed)
	}
	s := sizes[c-firstSized]
	n := 0
	if s.length > 0 {
		if len(b) < s.length {
			return nil, fmt.Errorf("cut off: %w", ErrMalformed)
		}
		n = readLength(b[:s.length])
		b = b[s.length:]
	}
	if s.values == 0 {
		return skipBytes(b, n+s.fixed)
	}
	return skipMany(b, n*s.values, depth)
}

func readLength(b []byte) int {
	switch len(b) {
	case 1:
		return int(b[0])
	case 2:
		return int(binary.BigEndian.Uint16(b))
	}
	return int(binary.BigEndian.Uint32(b))
}

func skipBytes(b []byte, n int) ([]byte, error) {
	if n > len(b) {
		return nil, fmt.Errorf("a length of %d with %d bytes left: %w", n, len(b), ErrMalformed)
	}
	return b[n:], nil
}

func skipMany(b []byte, n, depth int) ([]byte, error) {
	if n > len(b) { // each value needs a byte at least
		return nil, fmt.Errorf("%d values with %d bytes left: %w", n, len(b), ErrMalformed)
	}
	var err error
	for range n {
		if b, err = skipValue(b, depth-1); err != nil {
			return nil, err
		}
	}
	return b, nil
}
