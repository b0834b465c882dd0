package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skein-rl/skein/replay"
)

// Limits of the wire. A record and a blob piece each fit into one message.
const (
	maxMessage   = 16 << 20 // bytes of one gRPC message
	maxRecord    = 12 << 20 // bytes of one encoded EventLog
	maxBlob      = 1 << 30  // bytes of one blob
	blobPiece    = 1 << 20  // bytes of a blob in one message
	appendWindow = 8 << 20  // unanswered bytes of one append stream
	chunkBytes   = 1 << 20  // payload bytes gathered into one chunk
	inFlight     = 32 << 20 // payload bytes the leader works on at once
	replicaQueue = 64 << 20 // payload bytes waiting for one follower
	maxItems     = 512      // items of one raft entry
	maxPage      = 4096     // items of one answer to Scan
)

// Config of a replay node. Dir is required.
type Config struct {
	// Dir holds everything of the node; one process at a time.
	Dir string
	// ID names the node for ever; "" = the id in Dir, else a random one.
	ID string
	// Listen is host:port; port 0 = any free one. "" = the address of the last
	// start (file addr), else 127.0.0.1:0.
	Listen string
	// Advertise is the address others dial; "" = the bound one. Required when
	// Listen names no host.
	Advertise string
	// Join lists addresses of running nodes. Empty on the first start makes a
	// new cluster. Later starts find their peers by themselves; addresses
	// given are asked too.
	Join []string
	// Token admits this node on its first start; ignored afterwards.
	Token string
	// Authority is a folder that MakeAuthority wrote: the keys and the token of
	// a cluster that is founded with them, the same on every replay node. ""
	// lets the first node make its own. Ignored after the first start.
	Authority string
	// Founder, with Authority, is the id of the node that makes the cluster
	// when nobody answers at Join; "" is a node without Join.
	Founder string
	// Shard names the raft group that is founded, one beside the cluster's first
	// (ADR 11); "" = the first. It needs Authority. Later starts, and nodes that
	// join, find it in their certificate; a name given must be that.
	Shard string
	// Version of the software, shown in the cluster status.
	Version string
	// Store configures the node's storage; start from
	// replay.DefaultLocalOptions. Without sizes every number is its default.
	Store replay.LocalOptions

	// Heartbeat is raft's heartbeat and election timeout: a leader that is
	// silent so long is replaced. Generous, because training keeps every core
	// busy. Default 2 s, minimum 50 ms.
	Heartbeat time.Duration
	// AppendTimeout bounds the way of a payload chunk to a majority and the
	// commit of its ids. Default 10 s.
	AppendTimeout time.Duration
	// DiskTimeout bounds a write to the raft log; beyond it the node steps
	// down. Default 10 s.
	DiskTimeout time.Duration
	// AliveFor is how long after its last heartbeat a process counts as alive.
	// Default 10 s.
	AliveFor time.Duration
	// Tick is how often the leader lets time pass in the fold (expiry of
	// tickets and leases). Default 500 ms.
	Tick time.Duration
	// SnapshotEvery is the number of raft entries between snapshots; as many
	// stay in the log behind one. Default 4096.
	SnapshotEvery uint64

	// CertLife is how long the certificates that this node signs are valid;
	// they are renewed after two thirds of it. Default 90 days.
	CertLife time.Duration
	// Registerer gets the metrics, and those of the storage; nil = none.
	Registerer prometheus.Registerer
	// Logger; nil = slog.Default().
	Logger *slog.Logger

	wrapStore func(*replay.Local) storage       // for tests
	wrapLog   func(raft.LogStore) raft.LogStore // for tests
	// for tests
	wrapStable func(raft.StableStore) raft.StableStore
}

// DefaultConfig is a node in dir with every default filled in.
func DefaultConfig(dir string) Config {
	return Config{
		Dir:           dir,
		Heartbeat:     2 * time.Second,
		AppendTimeout: 10 * time.Second,
		DiskTimeout:   10 * time.Second,
		AliveFor:      10 * time.Second,
		Tick:          500 * time.Millisecond,
		SnapshotEvery: 4096,
		Store:         replay.DefaultLocalOptions(),
	}
}

// withDefaults replaces zero values.
func (c Config) withDefaults() Config {
	d := DefaultConfig(c.Dir)
	fill := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	fill(&c.Heartbeat, d.Heartbeat)
	fill(&c.AppendTimeout, d.AppendTimeout)
	fill(&c.DiskTimeout, d.DiskTimeout)
	fill(&c.AliveFor, d.AliveFor)
	fill(&c.Tick, d.Tick)
	if c.SnapshotEvery == 0 {
		c.SnapshotEvery = d.SnapshotEvery
	}
	if c.Store.SegmentBytes == 0 && c.Store.MemTableBytes == 0 {
		given := c.Store
		c.Store = d.Store
		c.Store.FreeSpace, c.Store.Verify = given.FreeSpace, given.Verify
		c.Store.Logger, c.Store.Registerer = given.Logger, given.Registerer
	}
	if c.Store.Registerer == nil {
		c.Store.Registerer = c.Registerer
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every problem at once. Zero values are defaults.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, remedy string) {
		errs = append(errs, fmt.Errorf("cluster: config %s = %v: %s", field, value, remedy))
	}
	if c.Dir == "" {
		bad("dir", `""`, "name a directory for the node")
	}
	if c.ID != "" && !validID.MatchString(c.ID) {
		bad("id", fmt.Sprintf("%q", c.ID), "use 1 to 63 letters, digits, '-' and '_'")
	}
	for _, a := range append([]string{c.Listen, c.Advertise}, c.Join...) {
		if a == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(a); err != nil {
			bad("address", fmt.Sprintf("%q", a), "use host:port")
		}
	}
	if c.Advertise != "" && c.Listen == "" {
		bad("advertise", fmt.Sprintf("%q", c.Advertise), "set listen too")
	}
	if c.Founder != "" && c.Authority == "" {
		bad("founder", fmt.Sprintf("%q", c.Founder), "give the authority too: a folder made with skein cluster init")
	}
	if c.Shard != "" {
		if err := replay.CheckShard(c.Shard); err != nil || c.Shard == replay.RootShard {
			bad("shard", fmt.Sprintf("%q", c.Shard), "use 1 to 31 lower-case letters, digits and '-'; the first group, root, is founded without a name")
		}
	}
	if c.Authority != "" && c.Token != "" {
		bad("token", "(hidden)", "leave it out: the authority's folder holds it")
	}
	if c.CertLife < 0 || c.CertLife > caValid {
		bad("cert_life", c.CertLife, "use a positive duration of at most 20 years, or 0 for the default of 90 days")
	}
	if c.Token != "" {
		if _, err := ParseToken(c.Token); err != nil {
			errs = append(errs, err)
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"append_timeout", c.AppendTimeout}, {"disk_timeout", c.DiskTimeout},
		{"alive_for", c.AliveFor}, {"tick", c.Tick},
	} {
		if d.value < 0 {
			bad(d.field, d.value, "use a positive duration, or 0 for the default")
		}
	}
	if c.Heartbeat != 0 && c.Heartbeat < 50*time.Millisecond {
		bad("heartbeat", c.Heartbeat, "use at least 50ms, or 0 for the default of 2s")
	}
	return errors.Join(errs...)
}

// advertised is the address others dial, given the bound one.
func (c Config) advertised(bound net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "", err
	}
	if c.Advertise != "" {
		h, p, err := net.SplitHostPort(c.Advertise)
		if err != nil {
			return "", err
		}
		if p == "0" {
			p = port
		}
		return net.JoinHostPort(h, p), nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return "", fmt.Errorf("cluster: config listen = %q names no host: set advertise to the address other machines reach", c.Listen)
	}
	return net.JoinHostPort(host, port), nil
}
