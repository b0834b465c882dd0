package cluster

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/skein-rl/skein/replay"
)

// For is a token that admits processes of one tenant, and with role != "" of
// that role only. It is derived from the cluster's token (HMAC-SHA256), so any
// replay node knows it, and a rotation of the cluster's token ends it as well.
// Errors: a tenant's token makes no other, and no tenant has replay nodes.
func (t Token) For(tenant, role string) (Token, error) {
	if t.tenant != "" {
		return Token{}, fmt.Errorf("cluster: token for tenant %q: the token given is itself one of tenant %q: use the cluster's own, file %q of a replay node's directory", tenant, t.tenant, fileToken)
	}
	var errs []error
	if tenant == "" {
		errs = append(errs, errors.New("cluster: token for a tenant: no tenant named; the default tenant has the cluster's own token"))
	}
	if tenant != AllTenants {
		if err := replay.CheckTenant(tenant); err != nil {
			errs = append(errs, fmt.Errorf("cluster: %w", err))
		}
	}
	switch role {
	case "", RoleWorker, RoleClient:
	case RoleLearner:
		if tenant == AllTenants {
			errs = append(errs, checkTenantOf(role, tenant))
		}
	default:
		errs = append(errs, fmt.Errorf("cluster: token for role %q: use %s, %s, %s, or none for all three", role, RoleWorker, RoleLearner, RoleClient))
	}
	if err := errors.Join(errs...); err != nil {
		return Token{}, err
	}
	return t.derive(tenant, role), nil
}

func (t Token) derive(tenant, role string) Token {
	mac := hmac.New(sha256.New, []byte(t.secret))
	fmt.Fprintf(mac, "skein tenant token 1\x00%s\x00%s", tenant, role)
	return Token{ca: t.ca, tenant: tenant, role: role, secret: base64.RawURLEncoding.EncodeToString(mac.Sum(nil))}
}

// Tenant is whom the token admits, "" = everybody.
func (t Token) Tenant() string { return t.tenant }

// admitsAs says whether a token that was shown admits a process, t being the
// cluster's own. Both comparisons take constant time.
func (t Token) admitsAs(shown Token, role, tenant string) error {
	if shown.tenant == "" && shown.role == "" {
		if !t.admits(shown.secret) {
			return errors.New("the token's secret is not that of this cluster")
		}
		return checkTenantOf(role, tenant)
	}
	switch {
	case t.secret == "" || !t.derive(shown.tenant, shown.role).admits(shown.secret):
		return fmt.Errorf("the token of tenant %q is not of this cluster, or was rotated away", shown.tenant)
	case tenant != shown.tenant:
		return fmt.Errorf("the token is of tenant %q, not %q", shown.tenant, tenant)
	case shown.role != "" && role != shown.role:
		return fmt.Errorf("the token is for role %s, not %s", shown.role, role)
	case role == RoleReplay:
		return errors.New("a tenant's token admits no replay node: use the cluster's own")
	}
	return checkTenantOf(role, tenant)
}
