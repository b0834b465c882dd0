{{- define "skein.labels" -}}
app.kubernetes.io/name: skein
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "skein.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The replay nodes' addresses, by their stable names. */}}
{{- define "skein.join" -}}
{{- $out := list -}}
{{- range $i := until (int .Values.replay.replicas) -}}
{{- $out = append $out (printf "%s-replay-%d.%s-replay:%d" $.Release.Name $i $.Release.Name (int $.Values.replay.port)) -}}
{{- end -}}
{{ join "," $out }}
{{- end }}

{{- define "skein.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "skein.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "skein.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  failureThreshold: 6
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  failureThreshold: 150
{{- end }}
