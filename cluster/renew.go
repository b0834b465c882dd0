package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"time"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
)

// Certificates live 90 days and are replaced, with a new key, after two thirds
// of that: replay nodes sign their own, everybody else asks a replay node with
// the certificate that is about to end. Connections that stand go on; new ones
// show the new certificate.

// renewal bounds: how often the time is looked at, and how soon a failed
// renewal is tried again.
const (
	renewLook  = time.Hour
	renewRetry = time.Minute
)

// renewAt is when the certificate should be replaced.
func (id *Identity) renewAt() time.Time {
	c := id.leaf()
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore.Add(clockSkew)) / 3)
}

// signSelf gives a replay node a new key and certificate, in memory.
func (id *Identity) signSelf() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf, err := id.sign(id.caller(), &key.PublicKey)
	if err != nil {
		return err
	}
	return id.setLeaf(leaf, key)
}

// renewSelf is signSelf, kept in dir.
func (id *Identity) renewSelf(dir string) error {
	if err := id.signSelf(); err != nil {
		return err
	}
	c := id.cert.Load()
	return id.saveLeaf(dir, c.PrivateKey.(*ecdsa.PrivateKey), c.Leaf.Raw)
}

// keepFresh renews the certificate in time until ctx ends.
func (id *Identity) keepFresh(ctx context.Context, log *slog.Logger, renew func(context.Context) error) {
	t := time.NewTimer(max(0, min(renewLook, time.Until(id.renewAt()))))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		next := renewLook
		if !time.Now().Before(id.renewAt()) {
			if err := renew(ctx); err != nil {
				log.Warn("certificate not renewed yet", "expires", id.Expires(), "error", err)
				next = renewRetry
			} else {
				log.Info("certificate renewed", "expires", id.Expires())
			}
		}
		if next == renewLook {
			next = max(time.Second, min(next, time.Until(id.renewAt())))
		}
		t.Reset(next)
	}
}

// newRequest makes a key and the request to sign it.
func newRequest(id string) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: id}}, key)
	return key, csr, err
}

// checkRequest is the public key of a request whose sender holds the private
// one.
func checkRequest(der []byte) (any, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: certificate request: %w", replay.ErrInvalid, err)
	}
	return csr.PublicKey, nil
}

// Renew signs the caller's certificate anew: same id, role and tenant.
func (m *membershipServer) Renew(ctx context.Context, q *pb.RenewRequest) (*pb.RenewResponse, error) {
	who := callerOf(ctx)
	pub, err := checkRequest(q.GetCsr())
	if err != nil {
		return nil, err
	}
	cert, err := m.n.ident.sign(who, pub)
	if err != nil {
		return nil, err
	}
	m.n.log.Info("certificate renewed", "id", who.id, "role", who.role)
	return &pb.RenewResponse{Certificate: cert}, nil
}

// renew gets the client's process a new certificate and keeps it in its
// directory.
func (c *Client) renew(ctx context.Context) error {
	key, csr, err := newRequest(c.id.ID)
	if err != nil {
		return err
	}
	return c.call(ctx, "renew the certificate", 0, func(ctx context.Context, l *link, _ bool) error {
		resp, err := pb.NewMembershipClient(l).Renew(ctx, &pb.RenewRequest{Csr: csr})
		if err != nil {
			return err
		}
		was := c.id.leaf()
		if err := c.id.setLeaf(resp.GetCertificate(), key); err != nil {
			return err
		}
		if now := c.id.leaf(); !now.NotAfter.After(was.NotAfter) {
			return fmt.Errorf("cluster: the new certificate ends on %s, the old one on %s: is the clock of %s right?", now.NotAfter, was.NotAfter, l.addr)
		}
		if c.dir == "" {
			return nil
		}
		return c.id.saveLeaf(c.dir, key, c.id.leaf().Raw)
	})
}

// present shows the certificate of the moment, as server and as client.
func (id *Identity) present(c *tls.Config) *tls.Config {
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.cert.Load(), nil }
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return id.cert.Load(), nil }
	return c
}
