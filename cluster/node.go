package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"google.golang.org/grpc"

	"github.com/skein-rl/skein/internal/clock"
	"github.com/skein-rl/skein/replay"
)

// Node is one replay node: a replica of the store and a member of the raft
// group. Safe for concurrent use.
type Node struct {
	cfg   Config
	log   *slog.Logger
	id    string
	addr  string    // what others dial; "" in a single process
	ident *Identity // nil in a single process
	epoch uint64    // grows with every start
	start time.Time

	lock    *os.File
	store   storage
	wal     *raftwal.WAL
	dlog    *deadlineLog
	fsm     *fsm
	raft    *raft.Raft
	changes *notifier
	clock   *clock.Group

	// Single process: only trans. Listening node: all of them.
	trans  raft.Transport
	stream *raftStream
	mux    *mux
	server *grpc.Server
	book   *book
	peers  *peers

	metrics *metrics
	live    *liveness
	app     *appender
	repairs *repairer
	blobs   *blobs
	// policies: from whom workers fetch adapters, while this node leads.
	policies *policyForest
	marks    *marks

	ready    atomic.Uint64          // term in which this node leads with everything applied; 0 = it does not
	members  sync.RWMutex           // appends hold it shared, membership changes alone
	conf     confMark               // rule's only
	removing atomic.Pointer[string] // the node being taken out

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	opened  chan struct{} // closed when raft is set
	failed  chan struct{} // closed by leave
	tasks   tracker
	asked   tracker // waiting for raft's answers
	closed  sync.Once
	member  bool  // fileMember is written
	crashed bool  // a test ends it without ceremony
	err     error // of Close
}

// Open starts a replay node with a listener. The first start needs either
// nothing (a new cluster of one) or Join and Token. It returns when the node
// listens and its raft runs; WaitReady waits for a leader. ctx bounds the
// joining only.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n, err := newNode(cfg)
	if err != nil {
		return nil, err
	}
	if err := n.openListening(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// OpenLocal starts a replica of one in this process: the same storage, raft
// log and fold, but no listener and no certificates. Use Store.
func OpenLocal(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Listen != "" || len(cfg.Join) > 0 || cfg.Token != "" {
		return nil, fmt.Errorf("cluster: config listen, join, token: a single process has no listener: leave them empty, or start a node")
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = 200 * time.Millisecond // nobody else to hear from
	}
	n, err := newNode(cfg)
	if err != nil {
		return nil, err
	}
	if err := n.openLocal(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func newNode(cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, log: cfg.Logger.With("component", "cluster"), lock: lock, start: time.Now(),
		changes: newNotifier(), clock: clock.NewGroup(), live: newLiveness(cfg.AliveFor), policies: newPolicyForest(), opened: make(chan struct{}), failed: make(chan struct{}),
	}
	n.metrics = newMetrics(cfg.Registerer)
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n, nil
}

func (n *Node) path(name string) string { return filepath.Join(n.cfg.Dir, name) }

func (n *Node) openLocal() error {
	if _, err := LoadIdentity(n.cfg.Dir); !errors.Is(err, ErrNoIdentity) {
		return fmt.Errorf("cluster: directory %s belongs to a node of a cluster: start it as a node, or use another directory", n.cfg.Dir)
	}
	n.id = localID
	addr, trans := raft.NewInmemTransport(raft.ServerAddress(localID))
	trans.Connect(addr, trans) // for the first election
	n.trans = trans
	n.book, _ = openBook("") // memory: can't fail
	if err := n.openRaft(true); err != nil {
		return err
	}
	if err := n.electSelf(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.DiskTimeout)
	defer cancel()
	return n.WaitReady(ctx, 1)
}

// localID names the only node of a single process.
const localID = "local"

func (n *Node) openListening(ctx context.Context) error {
	founder, err := n.identify(ctx)
	if err != nil {
		return err
	}
	n.id = n.ident.ID
	n.ident.valid = n.cfg.CertLife
	n.log = n.log.With("node", n.id)
	if n.book, err = openBook(n.cfg.Dir); err != nil {
		return err
	}
	if n.book.removed(n.id) {
		return fmt.Errorf("cluster: node %s was removed from cluster %s: use an empty directory and join as a new node",
			n.id, n.ident.Cluster())
	}
	if err := n.bind(); err != nil {
		return err
	}
	n.peers = newPeers(n.ident, n.book)
	n.stream = newRaftStream(n)
	n.trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider:   (*addressProvider)(n),
		Logger:                  raftLogger(n.log),
		Stream:                  n.stream,
		MaxPool:                 3,
		MaxRPCsInFlight:         1, // pipelining has deadlocked users
		Timeout:                 max(2*n.cfg.Heartbeat, time.Second),
		MsgpackUseNewTimeFormat: true,
	})
	if err := n.openRaft(founder); err != nil {
		return err
	}
	n.serve()
	n.tasks.run(n.announce)
	n.tasks.run(func() {
		n.ident.keepFresh(n.ctx, n.log, func(context.Context) error { return n.ident.renewSelf(n.cfg.Dir) })
	})
	n.log.Info("node listens", "addr", n.addr, "cluster", n.ident.Cluster())
	return n.electSelf()
}

// ID names the node.
func (n *Node) ID() string { return n.id }

// Addr is what others dial; "" in a single process.
func (n *Node) Addr() string { return n.addr }

// Identity is the node's certificate; nil in a single process. A process that
// also runs a worker or the learner can Dial with it.
func (n *Node) Identity() *Identity { return n.ident }

// WaitReady waits until the group has a leader that serves and, when voters is
// above 0, that many voters.
func (n *Node) WaitReady(ctx context.Context, voters int) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		have, _ := n.servers()
		_, leader := n.raft.LeaderWithID()
		if leader != "" && (string(leader) != n.id || n.ready.Load() != 0) && len(have) >= voters {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cluster: node %s not ready: leader %q, %d of %d voters: %w",
				n.id, leader, len(have), voters, ctx.Err())
		case <-n.ctx.Done():
			return fmt.Errorf("cluster: node %s closed: %w", n.id, replay.ErrUnavailable)
		case <-t.C:
		}
	}
}

// servers lists voters and non-voters by id.
func (n *Node) servers() (voters, others []string) {
	f := n.raft.GetConfiguration()
	if f.Error() != nil {
		return nil, nil
	}
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, string(s.ID))
		} else {
			others = append(others, string(s.ID))
		}
	}
	return voters, others
}

// Failed is closed when this replica can't follow its group any more, because
// its disk failed or was full to the last byte; Err says why. Its calls fail
// with the reason. Close it and open it again: what was applied is taken from
// raft's log where the disk did not keep it.
func (n *Node) Failed() <-chan struct{} { return n.failed }

// Err is why the replica failed, nil when it has not.
func (n *Node) Err() error {
	if err := n.fsm.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// leave takes a replica that can't apply any more out of the game.
func (n *Node) leave(error) {
	n.ready.Store(0)
	close(n.failed)
	n.tasks.run(func() { // raft's own goroutine reports the failure: don't wait in it
		select {
		case <-n.opened:
			_ = n.raft.Shutdown() // Close waits
		case <-n.ctx.Done():
		}
	})
}

// Close hands leadership on when it can, stops serving and waits for every
// goroutine.
func (n *Node) Close() error {
	n.closed.Do(func() { n.err = n.close() })
	return n.err
}

const (
	closeWait = 10 * time.Second
	askedWait = time.Second
)

func (n *Node) close() error {
	if n.raft != nil && !n.crashed && n.raft.State() == raft.Leader {
		if v, _ := n.servers(); len(v) > 1 {
			n.handOver()
		}
	}
	n.ready.Store(0)
	n.stop()
	var errs []error
	if n.server != nil && !waitFor(closeWait, n.server.Stop) {
		errs = append(errs, fmt.Errorf("cluster: node %s: calls did not end within %s (stalled disk?)", n.id, closeWait))
	}
	// raft 1.7.3 does not answer what is in its queue when it stops; while it
	// runs the queue is empty in no time, and what it has taken up it answers.
	waitFor(askedWait, n.asked.close)
	if n.stream != nil {
		errs = append(errs, n.stream.Close())
	}
	if n.raft != nil {
		if !waitFor(closeWait, func() { _ = n.raft.Shutdown().Error() }) {
			errs = append(errs, fmt.Errorf("cluster: node %s: raft did not stop within %s (stalled disk?)", n.id, closeWait))
		}
	}
	if t, ok := n.trans.(*raft.NetworkTransport); ok {
		t.CloseStreams()
		errs = append(errs, t.Close())
	}
	if n.mux != nil {
		errs = append(errs, n.mux.Close())
	}
	errs = append(errs, n.peers.close())
	n.tasks.close()
	if !waitFor(closeWait, n.asked.close) {
		errs = append(errs, fmt.Errorf("cluster: node %s: raft left questions without an answer", n.id))
	}
	if n.stream != nil {
		n.stream.wait()
	}
	if n.dlog != nil && !waitFor(closeWait, n.dlog.wait) {
		errs = append(errs, fmt.Errorf("cluster: node %s: raft log write still stalled", n.id))
	}
	if n.wal != nil {
		errs = append(errs, n.wal.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	n.metrics.close()
	return errors.Join(append(errs, n.lock.Close())...)
}

// handOver gives leadership to the most advanced follower, so that nobody has
// to wait for a timeout.
func (n *Node) handOver() {
	f := n.raft.LeadershipTransfer()
	if !waitFor(3*time.Second, func() { _ = f.Error() }) {
		n.log.Info("leadership not handed over in time")
	}
}

// waitFor runs f and tells whether it ended within d. On false f goes on.
func waitFor(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// readAddr is the address of the last start, "" when there was none.
func readAddr(dir string) (string, error) {
	b, err := readFile(filepath.Join(dir, fileAddr))
	return strings.TrimSpace(string(b)), err
}
