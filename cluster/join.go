package cluster

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/internal/durable"
	"github.com/skein-rl/skein/replay"
)

// JoinConfig says who joins where. All fields but Tenant are required.
type JoinConfig struct {
	Addrs []string // running replay nodes, tried in turn
	Token Token
	ID    string // of the joining process
	Role  string
	// Tenant is whose process it is; "" = the token's. With the cluster's own
	// token any may be named, AllTenants too.
	Tenant string
	Dir    string // gets the certificate and the address book
}

// Validate reports every problem at once.
func (c JoinConfig) Validate() error {
	var errs []error
	if len(c.Addrs) == 0 {
		errs = append(errs, errors.New("cluster: join: no address: name a running replay node (its file addr)"))
	}
	if c.Token.secret == "" {
		errs = append(errs, errors.New("cluster: join: no token: copy the file token of a replay node's directory"))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("cluster: join: no directory for the certificate"))
	}
	return errors.Join(append(errs, checkNode(c.ID, c.Role), checkTenantOf(c.Role, c.tenant()))...)
}

// Join gets a certificate for this process from the cluster that the token
// names and stores it in Dir. A directory that holds one already is returned as
// it is when it is of the same cluster, id and role. It tries until ctx ends,
// at most 60 s without a deadline; a refusal is final.
func Join(ctx context.Context, cfg JoinConfig) (*Identity, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	old, err := LoadIdentity(cfg.Dir)
	switch {
	case err == nil:
		return old, cfg.accepts(old)
	case !errors.Is(err, ErrNoIdentity) && !errors.Is(err, errExpired):
		return nil, err
	}
	key, req, err := cfg.request()
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	var last error
	for b := (backoffTimer{}); ; {
		for _, addr := range cfg.Addrs {
			id, err := cfg.joinAt(ctx, addr, req, key)
			if err == nil {
				return id, nil
			}
			if !retryable(err) {
				return nil, err
			}
			last = err
		}
		if !b.sleep(ctx) {
			return nil, fmt.Errorf("cluster: join as %s through %s: no node answers there: start one, or correct the address: %w (last: %w)", cfg.ID, strings.Join(cfg.Addrs, ", "), ctx.Err(), last)
		}
	}
}

// tenant is the one to be joined as.
func (c JoinConfig) tenant() string { return cmp.Or(c.Tenant, c.Token.tenant) }

// request prepares the directory and the question.
func (c JoinConfig) request() (*ecdsa.PrivateKey, *pb.JoinRequest, error) {
	if err := durable.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, nil, err
	}
	key, csr, err := newRequest(c.ID)
	return key, &pb.JoinRequest{Secret: c.Token.secret, Id: c.ID, Role: c.Role, Csr: csr,
		Tenant: c.tenant(), TokenTenant: c.Token.tenant, TokenRole: c.Token.role}, err
}

// tryOnce asks every address but its own one time. Nil without error: nobody
// is there.
func (c JoinConfig) tryOnce(ctx context.Context, self string) (*Identity, error) {
	key, req, err := c.request()
	if err != nil {
		return nil, err
	}
	for _, addr := range c.Addrs {
		if addr == self {
			continue
		}
		id, err := c.joinAt(ctx, addr, req, key)
		if err == nil || !retryable(err) {
			return id, err
		}
	}
	return nil, ctx.Err()
}

// Connect is what a worker or the learner does first: it loads the certificate
// in cfg.Dir, or joins on the first start, and dials. Later starts need neither
// address nor token.
func Connect(ctx context.Context, cfg JoinConfig) (*Client, error) {
	id, err := LoadIdentity(cfg.Dir)
	switch {
	case errors.Is(err, ErrNoIdentity), errors.Is(err, errExpired) && cfg.Token.secret != "":
		id, err = Join(ctx, cfg)
	case err == nil && cfg.Token.secret != "":
		err = cfg.accepts(id)
	case err == nil && (id.ID != cfg.ID || id.Role != cfg.Role || cfg.Tenant != "" && id.Tenant != cfg.Tenant):
		err = fmt.Errorf("cluster: directory %s belongs to %s, not to %s: use another directory", cfg.Dir, id.caller(), caller{cfg.ID, cfg.Role, cfg.Tenant})
	}
	if err != nil {
		return nil, err
	}
	return Dial(ctx, cfg.Addrs, id, cfg.Dir)
}

// accepts says whether an identity found in the directory is the wanted one.
func (c JoinConfig) accepts(id *Identity) error {
	switch {
	case sha256.Sum256(id.ca.Raw) != c.Token.ca:
		return fmt.Errorf("%w: directory %s holds a certificate of cluster %s, the token is for %s: use another directory, or that cluster's token",
			errOtherCluster, c.Dir, id.Cluster(), short(c.Token.ca))
	case id.caller() != caller{c.ID, c.Role, c.tenant()}:
		return fmt.Errorf("cluster: directory %s belongs to %s, not to %s: use another directory", c.Dir, id.caller(), caller{c.ID, c.Role, c.tenant()})
	}
	return nil
}

// joinAt asks one node.
func (c JoinConfig) joinAt(ctx context.Context, addr string, req *pb.JoinRequest, key *ecdsa.PrivateKey) (*Identity, error) {
	conf, check := c.Token.joinTLS()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithNoProxy(), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	resp, err := pb.NewMembershipClient(conn).Join(ctx, req)
	if err != nil {
		if refused := check.err(); refused != nil {
			return nil, fmt.Errorf("cluster: join at %s: %w", addr, refused)
		}
		return nil, fmt.Errorf("cluster: join at %s: %w", addr, fromStatus(err, addr))
	}
	id := &Identity{ID: req.GetId(), Role: req.GetRole(), Tenant: req.GetTenant(), ca: check.authority()}
	if err := id.setLeaf(resp.GetCertificate(), key); err != nil {
		return nil, err
	}
	if id.Role == RoleReplay {
		if id.caKey, err = x509.ParseECPrivateKey(resp.GetCaKey()); err != nil {
			return nil, fmt.Errorf("cluster: join at %s: authority key: %w", addr, err)
		}
		tok, err := ParseToken(resp.GetToken())
		if err != nil {
			return nil, err
		}
		id.secret.set(tok, resp.GetTokenGeneration())
	}
	b, err := openBook(c.Dir)
	if err != nil {
		return nil, err
	}
	if _, err := b.merge(resp.GetNodes()...); err != nil {
		return nil, err
	}
	return id, id.save(c.Dir)
}

const attemptTime = 5 * time.Second // of one try of one node

// retryable says whether another node, or the same one later, may do better.
func retryable(err error) bool {
	var nl *notLeaderError
	return errors.Is(err, replay.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &nl)
}
