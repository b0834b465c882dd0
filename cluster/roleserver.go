package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// roleServer is the port that a worker or a learner has for its fellows.
type roleServer struct {
	what   string // it serves, for messages
	addr   string
	ln     net.Listener
	server *grpc.Server
	wg     sync.WaitGroup
}

// fellows says what a process of a role serves.
type fellows struct {
	role    string
	what    string // for messages
	request int    // bytes of the largest message that is taken
	streams uint32 // of one connection
}

// listenFor opens the port, with the client's certificate. listen "" is any free
// one of the address by which this process reaches the replay nodes. What it
// serves is registered next, then serve begins.
func (c *Client) listenFor(f fellows, listen string) (*roleServer, error) {
	if c.id.Role != f.role {
		return nil, fmt.Errorf("cluster: serve %s: %s is a %s: join as %s", f.what, c.id.ID, c.id.Role, f.role)
	}
	if listen == "" {
		listen = net.JoinHostPort(localHost(c.addrs()), "0")
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("cluster: serve %s: %w: choose another address, or leave it empty", f.what, err)
	}
	addr, err := Config{}.advertised(ln.Addr())
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return &roleServer{addr: addr, what: f.what, ln: ln, server: grpc.NewServer(
		grpc.Creds(credentials.NewTLS(c.id.serverTLS())),
		grpc.MaxRecvMsgSize(f.request), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingWait}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery / 2, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(f.streams),
		grpc.StreamInterceptor(guardStream),
		grpc.WaitForHandlers(true),
	)}, nil
}

func (s *roleServer) serve(log *slog.Logger) {
	s.wg.Go(func() {
		if err := s.server.Serve(s.ln); err != nil {
			log.Error("server ended", "of", s.what, "err", err)
		}
	})
}

// localHost is this machine's address on the way to the first of addrs that has
// one; the loopback without any.
func localHost(addrs []string) string {
	for _, a := range addrs {
		conn, err := net.Dial("udp", a) // sends nothing: it only picks a route
		if err != nil {
			continue
		}
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		_ = conn.Close()
		if err == nil {
			return host
		}
	}
	return "127.0.0.1"
}

// Addr is where fellows reach this process.
func (s *roleServer) Addr() string { return s.addr }

// Close ends the calls and waits for their handlers.
func (s *roleServer) Close() {
	s.server.Stop()
	s.wg.Wait()
}
