package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

func newTenant(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Let several tenants share a cluster",
		Long: `A run belongs to the tenant whose certificate made it. Workers, learners and
clients of a tenant see and change its runs only; clients that joined with the
cluster's own token are operators and see all. Bounds are set with
skein replay quota.`,
	}
	cmd.AddCommand(newTenantToken(g))
	return cmd
}

func newTenantToken(g *globals) *cobra.Command {
	var file, role string
	cmd := &cobra.Command{
		Use:   "token TENANT",
		Short: "Make a join token for a tenant's processes",
		Long: `token derives a tenant's token from the cluster's own: no node needs to be asked.
The tenant "*" is every one, for workers that serve the runs of all. When the
cluster's token is rotated, tokens derived from it end too; certificates stay
valid until they end.`,
		Example: `  skein tenant token team-a --token-file node/replay/token > team-a.token
  skein tenant token team-a --role worker --token-file node/replay/token
  skein tenant token '*' --role worker --token-file node/replay/token`,
		Args: oneArg("tenant"),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := readToken(file)
			if err != nil {
				return err
			}
			own, err := cluster.ParseToken(strings.Split(text, "\n")[0])
			if err != nil {
				return err
			}
			tok, err := own.For(args[0], role)
			if err != nil {
				return err
			}
			return g.result(map[string]any{"tenant": args[0], "role": role, "cluster": tok.Cluster(), "token": tok.Reveal()},
				func() { fmt.Println(tok.Reveal()) })
		},
	}
	cmd.Flags().StringVar(&file, "token-file", "", "file with the cluster's own join token (required)")
	cmd.Flags().StringVar(&role, "role", "", "admit this role only: worker, learner or client (default: all three)")
	_ = cmd.MarkFlagRequired("token-file")
	return cmd
}

// quotaView is a tenant as --json prints it.
type quotaView struct {
	Tenant  string         `json:"tenant"`
	Version uint64         `json:"version"`
	Quota   quotaNumbers   `json:"quota"`
	Bytes   uint64         `json:"bytes"`
	Logs    uint64         `json:"logs"`
	Tickets uint64         `json:"tickets"`
	Refused map[string]int `json:"refused"`
	Runs    []string       `json:"runs"`
}

type quotaNumbers struct {
	Bytes            uint64  `json:"bytes"`
	Logs             uint64  `json:"logs"`
	AppendsPerSecond float64 `json:"appends_per_second"`
	Tickets          uint32  `json:"tickets"`
}

func newReplayQuota(g *globals) *cobra.Command {
	var t target
	var want quotaNumbers
	cmd := &cobra.Command{
		Use:   "quota [TENANT]",
		Short: "Show what tenants use and may use, or bound one",
		Long: `quota lists the tenants of a store with what their runs hold. With a tenant and
bounds it changes those named and leaves the others; 0 is no bound. "default" is
the tenant of runs made without one. A producer over a bound is told so and tries
again later; workers of a tenant with all its tickets out wait. What is stored
stays.`,
		Example: `  skein replay quota --join 10.0.0.1:7400 --token-file node/replay/token
  skein replay quota team-a --bytes 50000000000 --appends-per-second 200 --tickets 64 --join 10.0.0.1:7400 --token-file node/replay/token
  skein replay quota team-a --bytes 0 --dir runs/demo`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			st, err := t.connect(ctx, g)
			if err != nil {
				return err
			}
			defer st.Close()
			var changed []string
			for _, name := range []string{"bytes", "logs", "appends-per-second", "tickets"} {
				if cmd.Flags().Changed(name) {
					changed = append(changed, name)
				}
			}
			if len(changed) > 0 && len(args) == 0 {
				return fmt.Errorf("--%s: of which tenant? Name it: skein replay quota TENANT --%s …", changed[0], changed[0])
			}
			tenant := ""
			if len(args) == 1 && args[0] != replay.DefaultTenantName {
				tenant = args[0]
			}
			if len(changed) > 0 {
				if err := changeQuota(ctx, st, tenant, want, changed); err != nil {
					return err
				}
			}
			all, err := st.Tenants(ctx)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				all = slices.DeleteFunc(all, func(s replay.TenantStatus) bool { return s.Tenant != tenant })
				if len(all) == 0 {
					return fmt.Errorf("tenant %q: there is none with a run or a quota, or this certificate does not see it", args[0])
				}
			}
			views := make([]quotaView, len(all))
			for i, s := range all {
				views[i] = viewQuota(s)
			}
			return g.result(map[string]any{"tenants": views}, func() { printQuotas(views) })
		},
	}
	t.flags(cmd)
	f := cmd.Flags()
	f.Uint64Var(&want.Bytes, "bytes", 0, "most bytes of stored logs")
	f.Uint64Var(&want.Logs, "logs", 0, "most stored logs")
	f.Float64Var(&want.AppendsPerSecond, "appends-per-second", 0, "most logs stored a second")
	f.Uint32Var(&want.Tickets, "tickets", 0, "most groups handed to workers at once")
	return cmd
}

// changeQuota sets the named bounds; another's change in between is taken over.
func changeQuota(ctx context.Context, st *project.Store, tenant string, want quotaNumbers, names []string) error {
	for range 5 {
		all, err := st.Tenants(ctx)
		if err != nil {
			return err
		}
		var q replay.Quota
		var version uint64
		for _, s := range all {
			if s.Tenant == tenant {
				q, version = s.Quota, s.Version
			}
		}
		for _, name := range names {
			switch name {
			case "bytes":
				q.Bytes = want.Bytes
			case "logs":
				q.Logs = want.Logs
			case "appends-per-second":
				q.AppendsPerSecond = want.AppendsPerSecond
			case "tickets":
				q.Tickets = want.Tickets
			}
		}
		if _, err = st.SetQuota(ctx, tenant, q, version); !errors.Is(err, replay.ErrStale) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("quota of tenant %q: others change it all the time: try again", tenant)
}

func viewQuota(s replay.TenantStatus) quotaView {
	v := quotaView{Tenant: s.Tenant, Version: s.Version, Bytes: s.Bytes, Logs: s.Logs, Tickets: s.Tickets, Refused: s.Refused, Runs: s.Runs,
		Quota: quotaNumbers{s.Quota.Bytes, s.Quota.Logs, s.Quota.AppendsPerSecond, s.Quota.Tickets}}
	if v.Tenant == "" {
		v.Tenant = replay.DefaultTenantName
	}
	if v.Refused == nil {
		v.Refused = map[string]int{}
	}
	if v.Runs == nil {
		v.Runs = []string{}
	}
	return v
}

func printQuotas(views []quotaView) {
	of := func(used any, most any) string {
		if m := fmt.Sprint(most); m != "0" {
			return fmt.Sprintf("%v of %s", used, m)
		}
		return fmt.Sprint(used)
	}
	fmt.Printf("%-20s %28s %20s %12s %14s  %s\n", "tenant", "bytes", "logs", "appends/s", "tickets", "runs")
	for _, v := range views {
		rate := "any"
		if v.Quota.AppendsPerSecond > 0 {
			rate = fmt.Sprint(v.Quota.AppendsPerSecond)
		}
		fmt.Fprintf(os.Stdout, "%-20s %28s %20s %12s %14s  %s\n", v.Tenant, of(v.Bytes, v.Quota.Bytes), of(v.Logs, v.Quota.Logs), rate,
			of(v.Tickets, v.Quota.Tickets), strings.Join(v.Runs, " "))
		printCounts("  told to come back", v.Refused)
	}
}
