package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
)

// identify loads the node's certificate, or on the first start makes a cluster
// or joins one.
func (n *Node) identify(ctx context.Context) (founder bool, err error) {
	dir := n.cfg.Dir
	mark, err := readFile(n.path(fileFounder))
	if err != nil {
		return false, err
	}
	n.ident, err = LoadIdentity(dir)
	switch {
	case err == nil:
		return mark != nil, errors.Join(n.checkIdentity(), n.checkShard())
	case !errors.Is(err, ErrNoIdentity):
		return false, err
	}
	if founder, err = n.identifyFirst(ctx); err != nil {
		return false, err
	}
	return founder, n.checkShard()
}

// checkShard compares the raft group with the configured shard.
func (n *Node) checkShard() error {
	if have := shardOf(n.ident.group); n.cfg.Shard != "" && n.cfg.Shard != have {
		return fmt.Errorf("cluster: config shard = %q, but node %s in directory %s is of shard %q: leave shard empty, or use another directory",
			n.cfg.Shard, n.ident.ID, n.cfg.Dir, have)
	}
	return nil
}

// identifyFirst is identify of a directory without a certificate.
func (n *Node) identifyFirst(ctx context.Context) (founder bool, err error) {
	dir := n.cfg.Dir
	if _, err := os.Stat(n.path(dirRaft)); err == nil {
		return false, fmt.Errorf("cluster: directory %s holds a store but no certificate: it belongs to a single process, "+
			"or its certificate was lost; restore %s, or use an empty directory", dir, fileNodeCert)
	}
	id := n.cfg.ID
	if id == "" {
		var b [4]byte
		_, _ = rand.Read(b[:])
		id = "n" + hex.EncodeToString(b[:])
	}
	if n.cfg.Authority != "" {
		return n.identifyBy(ctx, id)
	}
	if len(n.cfg.Join) > 0 {
		tok, err := ParseToken(n.cfg.Token)
		if err != nil {
			return false, err
		}
		n.ident, err = Join(ctx, JoinConfig{Addrs: n.cfg.Join, Token: tok, ID: id, Role: RoleReplay, Dir: dir})
		return false, err
	}
	if n.cfg.Token != "" {
		return false, fmt.Errorf("cluster: config token without join: name the address of a running node, or leave both empty to make a new cluster")
	}
	if n.cfg.Shard != "" {
		return false, fmt.Errorf("cluster: config shard = %q without authority: a further shard is founded with the authority of the cluster (skein cluster init)", n.cfg.Shard)
	}
	a, err := newAuthority()
	if err != nil {
		return false, err
	}
	return true, n.found(a, id)
}

// found makes this node the first of a new cluster.
func (n *Node) found(a *authority, id string) (err error) {
	if n.ident, err = a.found(id, n.cfg.Shard, n.cfg.CertLife); err != nil {
		return err
	}
	if err := writeFile(n.path(fileFounder), []byte(id+"\n"), 0o600); err != nil {
		return err
	}
	return n.ident.save(n.cfg.Dir)
}

// identifyBy is the first start of a node of a fleet whose authority was made
// beforehand: all nodes get the same join addresses, and the founder makes the
// cluster when nobody answers there.
func (n *Node) identifyBy(ctx context.Context, id string) (founder bool, err error) {
	a, err := loadAuthority(n.cfg.Authority)
	if err != nil {
		return false, err
	}
	join := JoinConfig{Addrs: n.cfg.Join, Token: a.token, ID: id, Role: RoleReplay, Dir: n.cfg.Dir}
	if id != n.cfg.Founder && n.cfg.Founder != "" || n.cfg.Founder == "" && len(join.Addrs) > 0 {
		n.ident, err = Join(ctx, join)
		return false, err
	}
	n.ident, err = join.tryOnce(ctx, n.cfg.Advertise)
	if err != nil || n.ident != nil {
		return false, err
	}
	return true, n.found(a, id)
}

// checkIdentity compares the stored certificate with what the configuration
// says.
func (n *Node) checkIdentity() error {
	id, dir := n.ident, n.cfg.Dir
	if id.Role != RoleReplay {
		return fmt.Errorf("cluster: directory %s belongs to a %s (%s): a replay node needs its own", dir, id.Role, id.ID)
	}
	if n.cfg.ID != "" && n.cfg.ID != id.ID {
		return fmt.Errorf("cluster: config id = %q, but directory %s belongs to node %q: leave id empty or use another directory",
			n.cfg.ID, dir, id.ID)
	}
	if n.cfg.Token == "" {
		return nil
	}
	tok, err := ParseToken(n.cfg.Token)
	if err == nil && tok.ca != id.Token().ca {
		err = fmt.Errorf("%w: directory %s belongs to a node of cluster %s, the token to cluster %s: use an empty directory to join that one",
			errOtherCluster, dir, id.Cluster(), short(tok.ca))
	}
	return err
}

// bind opens the port, publishes the address and starts the mux.
func (n *Node) bind() error {
	want := n.cfg.Listen
	last, err := readAddr(n.cfg.Dir)
	if err != nil {
		return err
	}
	kept := false
	if want == "" {
		want, kept = "127.0.0.1:0", last != ""
		if kept {
			want = last
		}
	}
	ln, err := listen(want)
	if kept && errors.Is(err, unix.EADDRINUSE) {
		// Nobody asked for this very port: peers follow the new address.
		n.log.Warn("port of the last start is occupied; taking another", "addr", want)
		host, _, _ := net.SplitHostPort(want)
		ln, err = listen(net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return err
	}
	if n.addr, err = n.cfg.advertised(ln.Addr()); err != nil {
		return errors.Join(err, ln.Close())
	}
	n.epoch = max(uint64(n.start.UnixNano()), n.book.entry(n.id).Epoch+1)
	if err := writeFile(n.path(fileAddr), []byte(n.addr+"\n"), 0o644); err != nil {
		return errors.Join(err, ln.Close())
	}
	n.mux = newMux(ln, n.ident.serverTLS(), n.log)
	_, err = n.book.merge(n.self())
	return err
}

func (n *Node) self() *pb.NodeAddr { return &pb.NodeAddr{Id: n.id, Addr: n.addr, Epoch: n.epoch} }

// announce tells the other nodes where this one is and how far, and learns the
// same of them, until the node closes. It is how a joiner gets into the raft
// group and how a move to another port spreads.
func (n *Node) announce() {
	every := n.cfg.Heartbeat / 2
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if n.raft.LastIndex() > 0 {
			if err := n.markMember(); err != nil {
				n.log.Warn("membership not marked", "err", err)
			}
		}
		n.announceAll(every)
		select {
		case <-n.ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (n *Node) announceAll(every time.Duration) {
	known := make(map[string]bool)
	for _, p := range n.peers.others("") {
		known[p.addr] = true
		n.tasks.run(func() { n.announceTo(p, every) })
	}
	for _, addr := range n.cfg.Join {
		if known[addr] || addr == n.addr {
			continue
		}
		n.tasks.run(func() {
			l, err := dial(n.ident, addr, "")
			if err != nil {
				return
			}
			defer func() { _ = l.Close() }()
			n.announceTo(&peer{"", l, pb.NewPeerClient(l)}, every)
		})
	}
}

func (n *Node) announceTo(p *peer, limit time.Duration) {
	ctx, cancel := context.WithTimeout(n.ctx, max(limit, time.Second))
	defer cancel()
	resp, err := p.Announce(ctx, n.announcement())
	if err != nil {
		n.log.Debug("announce", "peer", p.String(), "err", p.fail(err))
		return
	}
	n.mergeBook(resp.GetBook())
	n.hearTime(p.id, resp.GetTime())
	n.hearToken(resp.GetToken())
}

func (n *Node) announcement() *pb.AnnounceRequest {
	s := n.status()
	return &pb.AnnounceRequest{
		Time: n.groupTime(),
		Self: n.self(), Book: n.book.all(), Applied: s.Applied, Missing: s.Missing, Term: s.Term,
		DiskFree: s.DiskFree, Version: s.Version, Started: nanos(s.Started), Token: n.ident.secret.wire(),
	}
}

// mergeBook takes over news about other nodes.
func (n *Node) mergeBook(news []*pb.NodeAddr) {
	was := n.book.removed(n.id)
	if _, err := n.book.merge(news...); err != nil {
		n.log.Warn("address book not saved", "err", err)
	}
	if !was && n.book.removed(n.id) {
		n.log.Error("this node was removed from the cluster; stop it")
	}
}

// status is this node's own line of the cluster status.
func (n *Node) status() NodeStatus {
	s := NodeStatus{
		NodeInfo: NodeInfo{ID: n.id, Role: RoleReplay, Addr: n.addr, Version: n.cfg.Version, Started: n.start,
			DiskFree: diskFree(n.cfg.Dir)},
		Alive: true, LastSeen: time.Now(),
	}
	found := n.repairs.found()
	s.Applied, s.Missing = found.applied, uint64(found.missing)
	if n.peers == nil { // no rounds of repair
		s.Applied = n.store.AppliedIndex()
	}
	s.Term = n.raft.CurrentTerm()
	if err := n.fsm.failed.Load(); err != nil {
		s.LastError = (*err).Error()
	}
	return s
}

// diskFree is the space left for the directory, 0 when it can't be told.
func diskFree(dir string) uint64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}
