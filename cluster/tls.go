package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// ALPN protocols of the one port.
const (
	alpnGRPC = "h2"
	alpnRaft = "skein-raft"
)

func (id *Identity) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(id.ca)
	return p
}

// serverTLS accepts members with their certificate and joiners without one;
// what a connection may do is decided per call (server.go) and per protocol
// (mux.go).
func (id *Identity) serverTLS() *tls.Config {
	return id.present(&tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs:  id.pool(),
		NextProtos: []string{alpnGRPC, alpnRaft},
	})
}

// errOtherCluster: the other side belongs to another cluster.
var errOtherCluster = fmt.Errorf("another cluster: %w", ErrDenied)

// verdict keeps what the verification of a server said: gRPC reports a refused
// handshake as a connection that is down, to be tried again.
type verdict struct {
	mu      sync.Mutex
	refused error
	ca      *x509.Certificate
}

func (v *verdict) err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.refused
}

// authority is the certificate authority that was found right.
func (v *verdict) authority() *x509.Certificate {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ca
}

// check makes a VerifyConnection that trusts exactly the authority with the
// fingerprint, servers of the named role and, when they are not "", the node of
// the id want and members of the raft group. The usual
// verification can't name the cluster that answers, and a joiner does not have
// the authority's certificate yet: the server sends it.
func (v *verdict) check(fp [sha256.Size]byte, role, want, group string) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		ca, err := verifyServer(cs, fp, role, want, group)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.refused, v.ca = err, ca
		return err
	}
}

func verifyServer(cs tls.ConnectionState, fp [sha256.Size]byte, role, want, group string) (*x509.Certificate, error) {
	if len(cs.PeerCertificates) == 0 {
		return nil, fmt.Errorf("%w: the server sent no certificate", ErrDenied)
	}
	leaf := cs.PeerCertificates[0]
	var ca *x509.Certificate
	found := "unknown"
	for _, c := range cs.PeerCertificates[1:] {
		if sum := sha256.Sum256(c.Raw); sum == fp {
			ca = c
		} else {
			found = short(sum)
		}
	}
	if ca == nil {
		return nil, fmt.Errorf("%w: the node there is of cluster %s, this process of cluster %s: "+
			"use the address of a node of the own cluster, or join that one with the token in file %q of its node's directory",
			errOtherCluster, found, short(fp), fileToken)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: role + nameSuffix}); err != nil {
		return nil, fmt.Errorf("%w: certificate of the server: %w", ErrDenied, err)
	}
	who, err := certNode(leaf)
	id := who.id
	if err == nil && want != "" && id != want {
		err = fmt.Errorf("node %s answers where %s was expected", id, want)
	}
	if other := certGroup(leaf); err == nil && group != "" && other != "" && other != group {
		err = fmt.Errorf("%w: node %s belongs to raft group %s of this authority, this process to group %s: its node was founded anew: "+
			"remove it from the group with skein cluster remove, and start it with an empty directory, another id and --join", errOtherCluster, id, other, group)
	}
	return ca, err
}

// joinTLS trusts the cluster that the token names.
func (t Token) joinTLS() (*tls.Config, *verdict) {
	v := &verdict{}
	return clientConfig(alpnGRPC, v.check(t.ca, RoleReplay, "", "")), v
}

// clientTLS speaks to replay nodes of the own cluster only; to one of them when
// want names it. After a move of ports another node may answer at an old
// address, and must not be counted as the one meant.
func (id *Identity) clientTLS(alpn, want string) (*tls.Config, *verdict) {
	return id.tlsTo(RoleReplay, alpn, want, id.group)
}

// tlsTo is clientTLS for servers of a role and raft group; group "" = of any.
func (id *Identity) tlsTo(role, alpn, want, group string) (*tls.Config, *verdict) {
	v := &verdict{}
	c := clientConfig(alpn, v.check(sha256.Sum256(id.ca.Raw), role, want, group))
	return id.present(c), v
}

func clientConfig(alpn string, verify func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         serverName,
		NextProtos:         []string{alpn},
		InsecureSkipVerify: true, // replaced by verify, which is stricter
		VerifyConnection:   verify,
	}
}

// doneTLS is the server side of gRPC over connections whose handshake mux.go
// has done already.
type doneTLS struct{}

// ServerHandshake hands the finished handshake's facts to gRPC.
func (doneTLS) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tc, ok := c.(*muxedConn)
	if !ok {
		return nil, nil, fmt.Errorf("cluster: connection from %s is not TLS", c.RemoteAddr())
	}
	return &wholeConn{tc.Conn, tc.below}, credentials.TLSInfo{
		State:          tc.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ClientHandshake is never used.
func (doneTLS) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("cluster: server-side credentials used by a client")
}

// Info names the protocol.
func (doneTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns the same, there is no state.
func (d doneTLS) Clone() credentials.TransportCredentials { return d }

// OverrideServerName does nothing on a server.
func (doneTLS) OverrideServerName(string) error { return nil }
