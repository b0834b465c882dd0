package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const handshakeTimeout = 10 * time.Second

// listen opens the node's port, with an error that helps when it is taken.
func listen(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err == nil {
		return ln, nil
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("cluster: listen %s: port occupied: stop the process that holds it, choose another, "+
			"or use port 0 and read the bound address from the file %q in the node's directory: %w", addr, fileAddr, err)
	}
	return nil, fmt.Errorf("cluster: listen %s: %w", addr, err)
}

// mux accepts TLS connections on one port and deals them to two listeners by
// their ALPN protocol. Raft connections must show a replay certificate.
type mux struct {
	ln   net.Listener
	conf *tls.Config
	log  *slog.Logger
	grpc *muxListener
	raft *muxListener

	wg   sync.WaitGroup
	ctx  context.Context // ends with Close
	stop context.CancelFunc
}

func newMux(ln net.Listener, conf *tls.Config, log *slog.Logger) *mux {
	m := &mux{ln: ln, conf: conf, log: log}
	m.ctx, m.stop = context.WithCancel(context.Background())
	m.grpc, m.raft = newMuxListener(m), newMuxListener(m)
	m.wg.Add(1)
	go m.accept()
	return m
}

// Close stops accepting and waits for handshakes in progress. Connections
// already dealt belong to their receivers.
func (m *mux) Close() error {
	m.stop()
	err := m.ln.Close()
	m.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (m *mux) accept() {
	defer m.wg.Done()
	for {
		c, err := m.ln.Accept()
		if err != nil {
			if m.ctx.Err() != nil {
				return
			}
			// Out of descriptors or the like: later calls may do better.
			m.log.Warn("accept failed", "addr", m.ln.Addr().String(), "err", err)
			select {
			case <-m.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		m.wg.Add(1)
		go m.shake(c)
	}
}

func (m *mux) shake(c net.Conn) {
	defer m.wg.Done()
	ctx, cancel := context.WithTimeout(m.ctx, handshakeTimeout)
	defer cancel()
	below := &recordConn{Conn: c}
	tc := &muxedConn{tls.Server(below, m.conf), below}
	if err := tc.HandshakeContext(ctx); err != nil {
		if m.ctx.Err() == nil {
			m.log.Info("connection refused", "from", c.RemoteAddr().String(), "err", err)
		}
		_ = c.Close()
		return
	}
	to := m.grpc
	cs := tc.ConnectionState()
	if cs.NegotiatedProtocol == alpnRaft {
		to = m.raft
		if who, err := stateNode(cs); err != nil || who.role != RoleReplay {
			m.log.Warn("raft connection refused: no replay certificate", "from", c.RemoteAddr().String())
			_ = c.Close()
			return
		}
	}
	select {
	case to.ch <- tc:
	case <-to.gone:
		_ = c.Close()
	case <-ctx.Done():
		_ = c.Close()
	}
}

// muxListener is one side of a mux.
type muxListener struct {
	m    *mux
	ch   chan net.Conn
	gone chan struct{}
	once sync.Once
}

func newMuxListener(m *mux) *muxListener {
	return &muxListener{m: m, ch: make(chan net.Conn), gone: make(chan struct{})}
}

// Accept waits for the next connection of this side's protocol.
func (l *muxListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ch:
		return c, nil
	case <-l.gone:
		return nil, net.ErrClosed
	case <-l.m.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close ends this side; the port stays open until the mux is closed.
func (l *muxListener) Close() error {
	l.once.Do(func() { close(l.gone) })
	return nil
}

// Addr is the bound address.
func (l *muxListener) Addr() net.Addr { return l.m.ln.Addr() }
