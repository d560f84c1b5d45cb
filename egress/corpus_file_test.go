package egress_test

import (
	"encoding/json"
	"net/netip"
	"strings"
)

type corpusFile struct {
	Format int          `json:"format"`
	Kind   string       `json:"kind"`
	What   string       `json:"what"`
	Policy corpusPolicy `json:"policy"`
	Cases  []corpusCase `json:"cases"`
}

type corpusPolicy struct {
	ConnectPorts      []uint16     `json:"connectPorts"`
	HTTPPorts         []uint16     `json:"httpPorts"`
	MaxHeaderBytes    int          `json:"maxHeaderBytes"`
	HeaderTimeoutMs   int          `json:"headerTimeoutMs"`
	IdleTimeoutMs     int          `json:"idleTimeoutMs"`
	DNSTimeoutMs      int          `json:"dnsTimeoutMs"`
	ResponseTimeoutMs int          `json:"responseTimeoutMs"`
	DenyExtraIPs      []netip.Addr `json:"denyExtraIPs"`
	HealthPath        string       `json:"healthPath"`
}

type generated struct {
	Prefix string `json:"prefix"`
	Repeat string `json:"repeat"`
	Times  int    `json:"times"`
	Suffix string `json:"suffix"`
}

func (g *generated) String() string { return g.Prefix + strings.Repeat(g.Repeat, g.Times) + g.Suffix }

type corpusDNS struct {
	IPs      []string   `json:"ips"`
	Sequence [][]string `json:"sequence"`
	Error    string     `json:"error"`
	CNAME    []string   `json:"cname"` // information only
}

type corpusTunnel struct {
	ClientSends            string  `json:"clientSends"`
	ClientSendsBase64      []byte  `json:"clientSendsBase64"`
	SameSegment            bool    `json:"sameSegment"`
	SplitAt                []int   `json:"splitAt"`
	ClientHalfClose        bool    `json:"clientHalfClose"`
	UpstreamSends          string  `json:"upstreamSends"`
	UpstreamHalfClose      bool    `json:"upstreamHalfClose"`
	ExpectUpstreamReceives string  `json:"expectUpstreamReceives"`
	ExpectClientReceives   string  `json:"expectClientReceives"`
	SNI                    *string `json:"sni"` // information only
	Idle                   bool    `json:"idle"`
	ClosedWithinMs         int     `json:"closedWithinMs"`
}

func (t *corpusTunnel) bytes() string { return t.ClientSends + string(t.ClientSendsBase64) }

type upstreamExpectation struct {
	RequestLine    string            `json:"requestLine"`
	Host           string            `json:"host"`
	Body           *string           `json:"body"`
	AbsentHeaders  []string          `json:"absentHeaders"`
	PresentHeaders map[string]string `json:"presentHeaders"`
	NotContains    []string          `json:"notContains"`
	SingleFraming  bool              `json:"singleFraming"`
}

type sendPart struct {
	Raw          string `json:"raw"`
	DelayMsAfter int    `json:"delayMsAfter"`
}

// corpusStep is one request and what must become of it.
type corpusStep struct {
	Method               string      `json:"method"`
	Target               string      `json:"target"`
	Proto                string      `json:"proto"`
	Headers              [][2]string `json:"headers"`
	Body                 string      `json:"body"`
	Expect               string      `json:"expect"`
	ExpectDial           []string    `json:"expectDial"`
	UpstreamResponse     string      `json:"upstreamResponse"`
	NewConnection        bool        `json:"newConnection"`
	ClosedOK             bool        `json:"closedOk"`
	ClientMustNotReceive string      `json:"clientMustNotReceive"`
}

type corpusCase struct {
	corpusStep
	ID       string `json:"id"`
	Group    string `json:"group"`
	Basis    string `json:"basis"`
	Severity string `json:"severity"`
	Why      string `json:"why"`

	AllowHosts []string             `json:"allowHosts"`
	DNS        map[string]corpusDNS `json:"dns"`
	Policy     *json.RawMessage     `json:"policy"`
	Steps      []corpusStep         `json:"steps"`
	Pipelined  bool                 `json:"pipelined"`
	Raw        string               `json:"raw"`
	RawBase64  string               `json:"rawBase64"`
	RawGen     *generated           `json:"rawGen"`
	Send       []sendPart           `json:"send"`

	AlsoOK        []string             `json:"alsoOk"`
	DialIfAllowed []string             `json:"dialIfAllowed"`
	Requires      []string             `json:"requires"`
	ConfigErrorOK bool                 `json:"configErrorOk"`
	Status        []int                `json:"status"`
	Upstream      *upstreamExpectation `json:"expectUpstream"`

	DialFail            []string      `json:"dialFail"`
	Lookups             int           `json:"lookups"`
	Local               bool          `json:"local"`
	VerdictAt           string        `json:"verdictAt"`
	Tunnel              *corpusTunnel `json:"tunnel"`
	UpstreamResponseGen *generated    `json:"upstreamResponseGen"`
	UpstreamHang        bool          `json:"upstreamHang"`
	TunnelForbidden     bool          `json:"tunnelForbidden"`
	CloseWithinMs       int           `json:"closeWithinMs"`
}
