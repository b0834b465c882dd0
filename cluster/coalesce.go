package cluster

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// crypto/tls hands the kernel one record of 16 KB at a time. For payloads that is
// most of a message's cost, so the records of one write go in one call here:
//
//	gRPC -> wholeConn -> tls.Conn -> recordConn -> TCP

// recordConn is below TLS: while held it gathers records.
type recordConn struct {
	net.Conn
	mu   sync.Mutex
	held bool
	buf  []byte
}

// Write implements net.Conn.
func (c *recordConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held {
		c.buf = append(c.buf, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *recordConn) hold() {
	c.mu.Lock()
	c.held = true
	c.mu.Unlock()
}

// keepRecords is the size of a buffer worth keeping between writes.
const keepRecords = 1 << 18

// flush ends hold and writes what was gathered.
func (c *recordConn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	if len(c.buf) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.buf)
	if c.buf = c.buf[:0]; cap(c.buf) > keepRecords {
		c.buf = nil
	}
	return err
}

// wholeConn is above TLS. One goroutine writes at a time, as gRPC does.
type wholeConn struct {
	net.Conn // TLS
	below    *recordConn
}

// Write implements net.Conn.
func (c *wholeConn) Write(b []byte) (int, error) {
	if len(b) <= 1<<14 { // one record
		return c.Conn.Write(b)
	}
	c.below.hold()
	n, err := c.Conn.Write(b)
	if ferr := c.below.flush(); err == nil && ferr != nil {
		return 0, ferr
	}
	return n, err
}

// writeBuffer is how much gRPC gathers before it writes.
const writeBuffer = 1 << 17

// wholeTLS is credentials.NewTLS over a recordConn, for clients.
type wholeTLS struct {
	credentials.TransportCredentials
}

func newWholeTLS(conf *tls.Config) credentials.TransportCredentials {
	return wholeTLS{credentials.NewTLS(conf)}
}

// ClientHandshake implements credentials.TransportCredentials.
func (w wholeTLS) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	below := &recordConn{Conn: c}
	tc, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, below)
	if err != nil {
		return nil, nil, err
	}
	return &wholeConn{tc, below}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (w wholeTLS) Clone() credentials.TransportCredentials {
	return wholeTLS{w.TransportCredentials.Clone()}
}

// muxedConn is a server's connection after its handshake.
type muxedConn struct {
	*tls.Conn
	below *recordConn
}
