// Package keys builds the fold's keys: components in a row whose byte order is
// the order of the components.
package keys

import "encoding/binary"

// Key is a tag byte followed by components: strings are escaped so that no id,
// whatever its bytes, can run into the next component, and numbers are
// big-endian so that key order is number order.
type Key []byte

// New begins a key.
func New(tag byte) Key { return append(make(Key, 0, 64), tag) }

// Str appends an escaped string: 0x00 becomes 0x00 0xff, the end is 0x00 0x01.
func (k Key) Str(s string) Key {
	for i := 0; i < len(s); i++ {
		k = append(k, s[i])
		if s[i] == 0 {
			k = append(k, 0xff)
		}
	}
	return append(k, 0, 1)
}

// U64 appends a number.
func (k Key) U64(n uint64) Key { return binary.BigEndian.AppendUint64(k, n) }

// Byte appends a tag.
func (k Key) Byte(b byte) Key { return append(k, b) }

// Unescape reads the first string component of b.
func Unescape(b []byte) string {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] == 0 {
			i++
			if i >= len(b) || b[i] == 1 {
				break
			}
			out = append(out, 0)
			continue
		}
		out = append(out, b[i])
	}
	return string(out)
}
