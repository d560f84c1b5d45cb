package e2b

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func valid() Config {
	return Config{APIKey: NewSecret("e2b_secretsecret"), Template: "shoal"}
}

func TestConfigIsValidated(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		field  string // "" is valid
	}{
		"least":                  {func(*Config) {}, ""},
		"no key":                 {func(c *Config) { c.APIKey = Secret{} }, "apiKey"},
		"wrong key":              {func(c *Config) { c.APIKey = NewSecret("sk_e2b_x") }, "apiKey"},
		"key with line end":      {func(c *Config) { c.APIKey = NewSecret("e2b_x\n") }, "apiKey"},
		"no template":            {func(c *Config) { c.Template = "" }, "template"},
		"template with tag":      {func(c *Config) { c.Template = "team/shoal:v1" }, ""},
		"template with space":    {func(c *Config) { c.Template = "a b" }, "template"},
		"domain":                 {func(c *Config) { c.Domain = "e2b.example.com" }, ""},
		"domain with path":       {func(c *Config) { c.Domain = "example.com/x" }, "domain"},
		"domain with user":       {func(c *Config) { c.Domain = "a@b" }, "domain"},
		"url https":              {func(c *Config) { c.APIURL = "https://api.example.com/" }, ""},
		"url http loopback":      {func(c *Config) { c.APIURL = "http://127.0.0.1:3000" }, ""},
		"url http private":       {func(c *Config) { c.APIURL = "http://10.1.2.3:3000" }, ""},
		"url http public":        {func(c *Config) { c.APIURL = "http://api.example.com" }, "apiURL"},
		"url with secret":        {func(c *Config) { c.APIURL = "https://u:p@api.example.com" }, "apiURL"},
		"url with path":          {func(c *Config) { c.APIURL = "https://api.example.com/x" }, "apiURL"},
		"url other scheme":       {func(c *Config) { c.APIURL = "ftp://api.example.com" }, "apiURL"},
		"timeout 59":             {func(c *Config) { c.TimeoutSeconds = 59 }, "timeoutSeconds"},
		"timeout 60":             {func(c *Config) { c.TimeoutSeconds = 60 }, ""},
		"timeout 86400":          {func(c *Config) { c.TimeoutSeconds = 86400 }, ""},
		"timeout 86401":          {func(c *Config) { c.TimeoutSeconds = 86401 }, "timeoutSeconds"},
		"timeout negative":       {func(c *Config) { c.TimeoutSeconds = -1 }, "timeoutSeconds"},
		"egress":                 {func(c *Config) { c.Egress = "proxy" }, "egress"},
		"native with allowlist":  {func(c *Config) { c.Egress, c.DomainAllowlist = EgressNative, true }, ""},
		"tunnel with allowlist":  {func(c *Config) { c.DomainAllowlist = true }, "domainAllowlist"},
		"tunnel with open":       {func(c *Config) { c.AllowOpenEgress = true }, "allowOpenEgress"},
		"fleet":                  {func(c *Config) { c.Fleet = "a b" }, "fleet"},
		"fleet of 65 characters": {func(c *Config) { c.Fleet = strings.Repeat("f", 65) }, "fleet"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := valid()
			c.change(&cfg)
			_, err := New(cfg)
			switch {
			case c.field == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.field != "" && (err == nil || !strings.Contains(err.Error(), c.field+":")):
				t.Errorf("want an error that names %s, got %v", c.field, err)
			case err != nil && strings.Contains(err.Error(), "secretsecret"):
				t.Error("the error holds the key")
			}
		})
	}
}

func TestSettingsAreStrict(t *testing.T) {
	good := `{"apiKey":"e2b_k","template":"shoal","timeoutSeconds":600}`
	c, err := ParseConfig(strings.NewReader(good))
	if err != nil || c.APIKey.Reveal() != "e2b_k" || c.TimeoutSeconds != 600 {
		t.Fatalf("%v %v", c, err)
	}
	for _, bad := range []string{
		"", "null x", `{"apikey2":"x"}`, `{"timeoutSeconds":"600"}`, `{"timeoutSeconds":1.5}`, good + good, `{"apiKey":1}`,
		`{"template":"` + strings.Repeat("x", maxSettings) + `"}`,
	} {
		if _, err := ParseConfig(strings.NewReader(bad)); err == nil {
			t.Errorf("%.60q was taken", bad)
		}
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	const value = "e2b_secretsecret"
	c := valid()
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", c.APIKey)
		fmt.Fprintf(&out, verb+"\n", &c.APIKey)
		fmt.Fprintf(&out, verb+"\n", c)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		l := slog.New(h)
		l.Info("x", "key", c.APIKey, "config", c, "pointer", &c.APIKey)
	}
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(data)
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%v %+v", p.cfg, p.api.key)
	e := answerError("x", 400, nil, []byte(`{"code":400,"message":"key `+value+` is bad"}`), c.APIKey)
	fmt.Fprint(&out, e)
	if strings.Contains(out.String(), "secretsecret") || strings.Contains(out.String(), fmt.Sprintf("%x", "secretsecret")) {
		t.Error("the key was printed")
	}
	if !strings.Contains(out.String(), redacted) {
		t.Error("nothing was printed in its place")
	}
}

func TestForeignTextIsCleaned(t *testing.T) {
	got := clean("a\x1b[31mb\r\nc" + strings.Repeat("x", 1000))
	if strings.ContainsAny(got, "\x1b\r\n") || len(got) > maxMessage+10 {
		t.Errorf("%q", got)
	}
}
