package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"time"
)

// This file is the part of the door that deals with tenants. A run belongs to
// one (RunSpec.Tenant); who may see whose runs is cluster's business.

// DefaultTenantName is how the default tenant, "", is written for people.
const DefaultTenantName = "default"

var tenantName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// CheckTenant says what is wrong with a tenant's name; "" is the default one.
func CheckTenant(name string) error {
	switch {
	case name == "" || tenantName.MatchString(name) && name != DefaultTenantName:
		return nil
	case name == DefaultTenantName:
		return fmt.Errorf("tenant %q is how the default tenant is shown: leave the name out, or choose another", name)
	}
	return fmt.Errorf("tenant %q: use 1 to 63 letters, digits, '-' and '_', starting with a letter or digit", cut(name, maxID))
}

// Quota bounds what the runs of one tenant use together; 0 is no bound. Appends
// beyond it are ErrBusy with the reason; what is stored already stays.
type Quota struct {
	Bytes uint64 // of the stored logs
	Logs  uint64
	// AppendsPerSecond is a rate of logs; as many as it gives in a second, and
	// at least one, may come at once.
	AppendsPerSecond float64
	Tickets          uint32 // groups handed to workers at once
}

// Validate reports every problem at once, wrapping ErrInvalid.
func (q Quota) Validate() error {
	var errs []error
	if r := q.AppendsPerSecond; math.IsNaN(r) || r < 0 || r > 1e9 || r > 0 && r < 1e-6 {
		errs = append(errs, fmt.Errorf("AppendsPerSecond = %v: want 0 for no bound, or 0.000001 to 1e9 logs a second", r))
	}
	for _, f := range []struct {
		name string
		n    uint64
	}{{"Bytes", q.Bytes}, {"Logs", q.Logs}} {
		if f.n > math.MaxInt64 {
			errs = append(errs, fmt.Errorf("%s = %d: want at most %d", f.name, f.n, int64(math.MaxInt64)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: quota: %w", ErrInvalid, err)
	}
	return nil
}

// TenantStatus is a tenant at a moment.
type TenantStatus struct {
	Tenant  string // "" = the default one
	Quota   Quota
	Version uint64    // of the quota; 0 = none was ever set
	Set     time.Time // when
	Bytes   uint64    // of the stored logs
	Logs    uint64
	Tickets uint64         // out now
	Refused map[string]int // appends and requests for tickets told to come back, by what was full
	Runs    []string       // by name
}

// TenantStore is the part of a store that tells of tenants.
type TenantStore interface {
	// SetQuota replaces a tenant's quota, which was version before (0 = there was
	// none), and returns the new version: an operator's business. An equal quota
	// is a success that changes nothing; another version is ErrStale.
	SetQuota(ctx context.Context, tenant string, quota Quota, version uint64) (uint64, error)
	// Tenants lists the tenants that the caller may see, by name.
	Tenants(ctx context.Context) ([]TenantStatus, error)
}
