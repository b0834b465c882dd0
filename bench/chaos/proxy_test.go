package main

import (
	"bufio"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A cut direction holds what is sent and gives it when it is lifted; the other
// direction goes on.
func TestOneDirectionIsCut(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	n := NewNetwork()
	defer n.Close()
	addr, err := n.Proxy(0, ln.Addr().String())
	require.NoError(t, err)
	a, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer func() { _ = a.Close() }()
	_, err = a.Write([]byte("hello\n"))
	require.NoError(t, err)
	b, err := ln.Accept()
	require.NoError(t, err)
	defer func() { _ = b.Close() }()
	in, out := bufio.NewReader(b), bufio.NewReader(a)
	line := func(c net.Conn, r *bufio.Reader) string {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		s, _ := r.ReadString('\n')
		return s
	}
	require.Equal(t, "hello\n", line(b, in))
	lift := n.Impose(Rules{{outside, 0}: {Cut: true}})
	_, err = a.Write([]byte("later\n"))
	require.NoError(t, err)
	require.Empty(t, line(b, in))
	_, err = b.Write([]byte("back\n"))
	require.NoError(t, err)
	require.Equal(t, "back\n", line(a, out))
	lift(false)
	require.Equal(t, "later\n", line(b, in))
	lift = n.Impose(Rules{{outside, 0}: {Cut: true}})
	lift(true)
	_, err = out.ReadString('\n')
	require.Error(t, err, "reset")
}
