package main

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/project"
	"github.com/skein-rl/skein/replay"
)

// topFrame is what a frame is drawn from.
type topFrame struct {
	before, now   project.Overview // the last two looks: rates are their difference
	width, height int              // 0 = unbounded
	err           error
	paused        bool
}

// renderTop draws a frame: no line is wider than the terminal, and what does
// not fit in its height is counted.
func renderTop(f topFrame) string {
	var lines []string
	add := func(format string, a ...any) { lines = append(lines, fmt.Sprintf(format, a...)) }
	head := "skein top"
	if c := f.now.Cluster; c != nil {
		leader := c.Leader
		if leader == "" {
			leader = "none"
		}
		head += fmt.Sprintf("   cluster %s   leader %s   term %d", c.Cluster, leader, c.Term)
	} else {
		head += "   no node is running"
	}
	if !f.now.At.IsZero() {
		head += "   " + f.now.At.Format(time.TimeOnly)
	}
	if f.paused {
		head += "   paused"
	}
	add("%s", head)
	if f.err != nil {
		add("! %s", plain(f.err))
	}
	add("")
	add("%-16s %5s %7s %8s  %-25s %8s %8s %7s  %s", "RUN", "STEP", "VERSION", "REWARD", "GROUPS open/run/ready/held", "LOGS", "LOGS/S", "FAILED", "STALENESS of trained logs")
	for _, r := range f.now.Runs {
		lines = append(lines, runLine(r, f))
		for _, t := range r.Tables {
			if t.Table != "train" && t.Table != "eval" {
				add("  table %-12s %d ready, %d open, %d leased, %d inserted, %d sampled%s", t.Table, t.Ready, t.Open, t.Leased, t.Inserted, t.Sampled, blocked(t))
			}
		}
	}
	if len(f.now.Runs) == 0 {
		add("no run yet")
	}
	if c := f.now.Cluster; c != nil {
		add("")
		add("%-20s %-8s %-6s %8s %9s %9s  %s", "NODE", "ROLE", "STATE", "VERSION", "TOKENS/S", "IN FLIGHT", "")
		for _, n := range c.Nodes {
			lines = append(lines, nodeLine(n, f.now.At))
		}
		if slow := slowTools(c.Nodes); len(slow) > 0 {
			add("")
			add("%-20s %9s %9s %9s %7s", "SLOWEST TOOLS", "MEAN", "LONGEST", "CALLS", "FAILED")
			lines = append(lines, slow...)
		}
	}
	return fit(lines, f.width, f.height)
}

func runLine(r project.RunOverview, f topFrame) string {
	s := r.Status
	step, reward := "-", "-"
	if l := s.LastStep; l != nil {
		step = fmt.Sprint(l.Step)
		if v, ok := l.Metrics["reward"]; ok {
			reward = fmt.Sprintf("%.3f", v)
		}
	}
	name := s.Spec.Run
	if s.Finished {
		name += " (done)"
	}
	rate := "-"
	for _, b := range f.before.Runs {
		if secs := f.now.At.Sub(f.before.At).Seconds(); b.Status.Spec.Run == s.Spec.Run && secs > 0 {
			rate = fmt.Sprintf("%.1f", float64(s.Appended-b.Status.Appended)/secs)
		}
	}
	groups := fmt.Sprintf("%d/%d/%d/%d", r.Open, s.RunningGroups, s.ReadyGroups, s.LeasedGroups)
	return fmt.Sprintf("%-16s %5s %7d %8s  %-26s %8d %8s %7d  %s", name, step, s.Latest.Version, reward, groups, s.Appended, rate, s.FailedRollouts, histogram(s.StalenessCounts))
}

// histogram draws shares by age: "0:92% 1:8%".
func histogram(counts map[uint64]int) string {
	total := 0
	for _, n := range counts {
		total += n
	}
	var parts []string
	for _, age := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d:%.0f%%", age, 100*float64(counts[age])/float64(total)))
	}
	return strings.Join(parts, " ")
}

func blocked(t replay.TableStatus) string {
	switch {
	case t.InsertBlocked != "":
		return "; takes nothing: " + t.InsertBlocked
	case t.SampleBlocked != "":
		return "; gives nothing: " + t.SampleBlocked
	}
	return ""
}

func nodeLine(n cluster.NodeStatus, now time.Time) string {
	state := "up"
	if !n.Alive {
		state = "silent"
	}
	version, rate, flight := "-", "-", "-"
	if n.Role == cluster.RoleWorker {
		version, rate = fmt.Sprint(n.PolicyVersion), fmt.Sprintf("%.0f", n.TokensPerSecond)
		flight = fmt.Sprintf("%.0f", n.Metrics["in_flight"])
	}
	var notes []string
	if n.Leader {
		notes = append(notes, "leader")
	}
	if n.Leads {
		notes = append(notes, "trains")
	}
	if n.Run != "" {
		notes = append(notes, n.Run)
	}
	if n.Missing > 0 {
		notes = append(notes, fmt.Sprintf("pulls %d logs", n.Missing))
	}
	if !n.Alive && !n.LastSeen.IsZero() {
		notes = append(notes, "last seen "+now.Sub(n.LastSeen).Round(time.Second).String()+" ago")
	}
	if n.LastError != "" {
		notes = append(notes, "! "+n.LastError)
	}
	return fmt.Sprintf("%-20s %-8s %-6s %8s %9s %9s  %s", n.ID, n.Role, state, version, rate, flight, strings.Join(notes, ", "))
}

// slowTools lists the tools with the greatest mean time over all workers.
func slowTools(nodes []cluster.NodeStatus) []string {
	const most = 5
	sum := map[string]project.ToolTime{}
	for _, n := range nodes {
		for name, t := range project.ToolTimes(n.Metrics) {
			s := sum[name]
			s.Calls, s.Errors, s.Seconds, s.Max = s.Calls+t.Calls, s.Errors+t.Errors, s.Seconds+t.Seconds, max(s.Max, t.Max)
			sum[name] = s
		}
	}
	names := slices.Sorted(maps.Keys(sum))
	sort.SliceStable(names, func(i, j int) bool { return sum[names[i]].Mean() > sum[names[j]].Mean() })
	var out []string
	for _, name := range names[:min(most, len(names))] {
		t := sum[name]
		out = append(out, fmt.Sprintf("%-20s %8.3fs %8.3fs %9.0f %7.0f", name, t.Mean(), t.Max, t.Calls, t.Errors))
	}
	return out
}

// fit cuts lines to the terminal.
func fit(lines []string, width, height int) string {
	if height > 1 && len(lines) > height-1 {
		left := len(lines) - (height - 2)
		lines = append(slices.Clone(lines[:height-2]), fmt.Sprintf("... %d more lines: use a taller window, or --once", left))
	}
	for i, l := range lines {
		l = strings.TrimRight(strings.ReplaceAll(l, "\n", " "), " ")
		if width > 3 && utf8.RuneCountInString(l) > width {
			l = string([]rune(l)[:width-1]) + "…"
		}
		lines[i] = l
	}
	return strings.Join(lines, "\n") + "\n"
}
