package replay

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/skein-rl/skein/replay/table"
)

// tableVerb runs the verbs of configured tables:
//
//	table name= [set=key:value;key:value ...] [version=]   dotted keys go into parts; onto the default
//	insert table= group= logs=a,b [priority=]
//	priorities table= set=group:1,group:2
//	remove table= groups=a,b reason=
//	delete logs=a,b [reason=]
//	redact logs=a,b [old= to= size= reason=] | drop table= | forget before= [limit=]
//	import table= group= members=a,b [policy= ...] | import table= as=GROUP logs=a,b state= [index= size= priority= sampled= reason=]
//	tail [table= from= limit=] | item log= | keys SPACE
//	tables | groups table= [after= limit=] | history table=
func (s *script) tableVerb(verb string, a args) (out string, err error, ok bool) {
	var b strings.Builder
	name := a.str("table", a.str("name", "x"))
	switch verb {
	case "table":
		cfg, err := table.Decode([]byte(jsonOf(a.str("set", ""))), table.Default())
		if err != nil {
			return "", err, true
		}
		version := a.num("version", 0)
		res, err := s.apply(SetTableCmd{s.now, "r", name, cfg, version})
		if err != nil {
			return "", err, true
		}
		return fmt.Sprintf("configuration %d\n", res.Version), nil, true
	case "insert":
		in := GroupInsert{Group: a.str("group", "g"), LogIDs: strings.Split(a.str("logs", ""), ",")}
		if p, ok := a["priority"]; ok {
			in.HasPriority, in.Priority = true, number(p)
		}
		res, err := s.apply(InsertGroupsCmd{s.now, "r", name, []GroupInsert{in}})
		if err != nil {
			return "", err, true
		}
		return fmt.Sprintf("{Duplicate:%v Rejected:%s Busy:%s}\n", res.Append[0].Duplicate, res.Append[0].Rejected, res.Append[0].Busy), nil, true
	case "priorities":
		var ups []GroupPriority
		for _, p := range strings.Split(a.str("set", ""), ",") {
			g, v, _ := strings.Cut(p, ":")
			ups = append(ups, GroupPriority{"r/" + name + "/" + g, number(v)})
		}
		res, err := s.apply(UpdatePrioritiesCmd{s.now, "r", name, ups})
		return fmt.Sprintf("%d updated\n", res.Updated), err, true
	case "remove":
		var groups []string
		for _, g := range strings.Split(a.str("groups", ""), ",") {
			groups = append(groups, "r/"+name+"/"+g)
		}
		res, err := s.apply(RemoveGroupsCmd{s.now, "r", name, groups, a.str("reason", "bad")})
		return fmt.Sprintf("%d removed\n", res.Updated), err, true
	case "delete":
		res, err := s.apply(DeleteLogsCmd{s.now, "r", strings.Split(a.str("logs", ""), ","), a.str("reason", "asked")})
		return fmt.Sprintf("%d deleted\n", res.Updated), err, true
	case "redact":
		var logs []Redaction
		for _, id := range strings.Split(a.str("logs", ""), ",") {
			old := a.str("old", "d:"+id)
			logs = append(logs, Redaction{LogID: id, OldDigest: old, Digest: a.str("to", "twin-"+id), Size: uint32(a.num("size", 7))})
		}
		res, err := s.apply(RedactLogsCmd{s.now, "r", logs, a.str("reason", "asked")})
		return fmt.Sprintf("%d redacted\n", res.Updated), err, true
	case "drop":
		_, err := s.apply(DropTableCmd{s.now, "r", name})
		return "", err, true
	case "forget":
		res, err := s.apply(ForgetDeletedCmd{s.now, epoch.Add(a.dur("before", 0)), int(a.num("limit", 100))})
		return fmt.Sprintf("%d forgotten\n", res.Updated), err, true
	case "import":
		c := ImportLogsCmd{Now: s.now, Run: "r", Policy: Policy{Run: "r", Version: a.num("policy", 0), Adapter: "far"}}
		if g, ok := a["as"]; ok {
			c.Groups = []ImportGroup{{Table: name, Group: g, State: a.str("state", "ready"), Reason: a.str("reason", ""), Size: uint32(a.num("size", 2)),
				LogIDs: strings.Split(a.str("logs", ""), ","), Index: a.num("index", 0), Priority: number(a.str("priority", "1")), TimesSampled: uint32(a.num("sampled", 0))}}
		} else {
			for _, m := range strings.Split(a.str("members", "0"), ",") {
				c.Items = append(c.Items, s.item(a, m))
			}
		}
		res, err := s.apply(c)
		for _, r := range res.Append {
			fmt.Fprintf(&b, "{Duplicate:%v Rejected:%s Busy:%s}\n", r.Duplicate, r.Rejected, r.Busy)
		}
		return b.String(), err, true
	case "tail":
		items, err := Tail(s.kv, TailRequest{Run: "r", Table: a.str("table", ""), Token: a.str("from", ""), Limit: int(a.num("limit", 0))})
		for _, x := range items {
			fmt.Fprintf(&b, "%s %s\n", x.Item.LogID, x.Token)
		}
		return b.String(), err, true
	case "item":
		items, err := Items(s.kv, []string{a.str("log", "")})
		for _, it := range items {
			fmt.Fprintf(&b, "%s digest=%s size=%d\n", it.LogID, it.Digest, it.Size)
		}
		return b.String(), err, true
	case "keys": // how many of a space are left
		n := 0
		err := s.kv.Iterate([]byte(a.str("", "")), nil, func(_, _ []byte) bool { n++; return true })
		return fmt.Sprintf("%d keys\n", n), err, true
	case "tables":
		ts, err := Tables(s.kv, "r")
		for _, t := range ts[1:] {
			fmt.Fprintf(&b, "%s v%d: open=%d ready=%d leased=%d bytes=%d inserted=%d sampled=%d consumed=%d epoch=%d removed=%v refused=%v duplicates=%d indexing=%v\n",
				t.Table, t.Version, t.Open, t.Ready, t.Leased, t.Bytes, t.Inserted, t.Sampled, t.Consumed, t.Epoch, sorted(t.Removed), sorted(t.Refused), t.Duplicates, t.Indexing)
			if t.InsertBlocked != "" {
				fmt.Fprintf(&b, "  insert: %s\n", t.InsertBlocked)
			}
			if t.SampleBlocked != "" {
				fmt.Fprintf(&b, "  sample: %s\n", t.SampleBlocked)
			}
		}
		return b.String(), err, true
	case "groups":
		gs, next, err := TableGroups(s.kv, "r", name, a.str("after", ""), int(a.num("limit", 100)))
		for _, g := range gs {
			fmt.Fprintf(&b, "%s %s %s seq=%d logs=%v priority=%g sampled=%d\n", g.Group, g.State, g.Reason, g.Seq, g.LogIDs, g.Priority, g.TimesSampled)
		}
		fmt.Fprintf(&b, "next=%q\n", next)
		return b.String(), err, true
	case "history":
		vs, err := TableHistory(s.kv, "r", name)
		for _, v := range vs {
			fmt.Fprintf(&b, "%d at %v: %s %s max_items=%d\n", v.Version, v.Set.Sub(epoch), v.Config.Sampler.Kind, v.Config.Limiter.Kind, v.Config.MaxItems)
		}
		return b.String(), err, true
	}
	return "", nil, false
}

func number(s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic(err)
	}
	return f
}

// jsonOf makes {"a":{"b":1}} of "a.b:1".
func jsonOf(set string) string {
	parts := map[string][]string{}
	for _, kv := range strings.Split(set, ";") {
		if kv == "" {
			continue
		}
		k, v, _ := strings.Cut(kv, ":")
		if _, err := strconv.ParseFloat(v, 64); err != nil && v != "true" && v != "false" {
			v = strconv.Quote(v)
		}
		part, field, dotted := strings.Cut(k, ".")
		if !dotted {
			part, field = "", k
		}
		parts[part] = append(parts[part], strconv.Quote(field)+":"+v)
	}
	out := parts[""]
	var names []string
	for name := range parts {
		if name != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		out = append(out, strconv.Quote(name)+":{"+strings.Join(parts[name], ",")+"}")
	}
	return "{" + strings.Join(out, ",") + "}"
}
