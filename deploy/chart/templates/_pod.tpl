{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The address without TLS; empty if there is none. */}}
{{- define "sluice.http" -}}
{{- if eq .Values.shape "sidecar" -}}
{{ (.Values.config.listen | default dict).http | default "127.0.0.1:8080" }}
{{- else if .Values.tls.plaintext -}}
0.0.0.0:8080
{{- end -}}
{{- end }}

{{- define "sluice.configuration" -}}
{{- $listen := dict "operator" "0.0.0.0:9090" "http" (include "sluice.http" . | default nil) }}
{{- if not $listen.http }}
{{- $_ := set $listen "https" (dict "address" "0.0.0.0:8443" "certificate" "/etc/sluice-tls/tls.crt" "key" "/etc/sluice-tls/tls.key") }}
{{- end }}
{{- if .Values.s3.enabled }}
{{- $s3 := dict "https" "0.0.0.0:9443" }}
{{- if eq .Values.shape "sidecar" }}
{{- $s3 = dict "http" "127.0.0.1:9000" }}
{{- else if .Values.tls.plaintext }}
{{- $s3 = dict "http" "0.0.0.0:9000" }}
{{- end }}
{{- $_ := set $listen "s3" $s3 }}
{{- end }}
{{- if .Values.console.enabled }}
{{- $_ := set $listen "console" "127.0.0.1:9091" }}
{{- end }}
{{- $rules := ternary "none" "/etc/sluice-rules/storage.rules" .Values.open }}
{{- $configuration := mergeOverwrite (deepCopy .Values.config) (dict "listen" $listen "rules" $rules) }}
{{- $_ := set $configuration.listen "http" $listen.http }}
{{- if .Values.cache.enabled }}
{{- $_ := set $configuration "cache" (mergeOverwrite (deepCopy (.Values.config.cache | default dict)) (dict "directory" "/var/cache/sluice/objects")) }}
{{- end }}
{{- if eq .Values.shape "gateway" }}
{{- $_ := set $configuration "limits" (mergeOverwrite (dict "drainDelay" "5s") (.Values.config.limits | default dict)) }}
{{- end }}
{{- toYaml $configuration }}
{{- end }}

{{- /* The pod of all shapes. */}}
{{- define "sluice.pod" -}}
metadata:
  labels:
    {{- include "sluice.selector" . | nindent 4 }}
  annotations:
    # Another configuration needs a restart; other rules and certificates do not.
    checksum/configuration: {{ include "sluice.configuration" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ .Release.Name }}
  automountServiceAccountToken: {{ .Values.accountToken }}
  enableServiceLinks: false    # otherwise a Service named sluice would set SLUICE_… variables
  # 5 s until load balancers know, up to 25 s to drain, 8 s to close; and an application's end before a sidecar's.
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
  {{- else if eq .Values.shape "gateway" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "sluice.selector" . | nindent 10 }}
  {{- end }}
  {{- if eq .Values.shape "sidecar" }}
  initContainers:
    - {{- include "sluice.container" . | nindent 6 }}
      restartPolicy: Always    # this makes it a sidecar: ready before the application starts, ended after it
  containers:
    {{- toYaml .Values.sidecar.containers | nindent 4 }}
  {{- else }}
  containers:
    - {{- include "sluice.container" . | nindent 6 }}
  {{- end }}
  volumes:
    - name: configuration
      configMap: {name: {{ .Release.Name }}}
    {{- if not .Values.open }}
    - name: rules
      configMap: {name: {{ .Release.Name }}-rules}
    {{- end }}
    {{- if and .Values.tls.secretName (ne .Values.shape "sidecar") }}
    - name: tls
      secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
    {{- end }}
    - name: temporary
      emptyDir: {}
    {{- if .Values.cache.enabled }}
    - name: cache
      emptyDir:
        sizeLimit: {{ .Values.cache.sizeLimit }}
        {{- with .Values.cache.medium }}
        medium: {{ . }}
        {{- end }}
    {{- end }}
    {{- with concat .Values.volumes (ternary .Values.sidecar.volumes list (eq .Values.shape "sidecar")) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "sluice.container" -}}
name: sluice
image: {{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, --config, /etc/sluice/sluice.yaml]
env:
  # The image's variables are for docker run; the configuration has the addresses.
  - {name: SLUICE_LISTEN_HTTP, value: {{ include "sluice.http" . | quote }}}
  - {name: SLUICE_LISTEN_OPERATOR, value: "0.0.0.0:9090"}
  - {name: TMPDIR, value: /tmp}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: operator, containerPort: 9090}
  {{- if ne .Values.shape "sidecar" }}
  - {name: service, containerPort: {{ ternary 8080 8443 .Values.tls.plaintext }}}
  {{- if .Values.s3.enabled }}
  - {name: s3, containerPort: {{ ternary 9000 9443 .Values.tls.plaintext }}}
  {{- end }}
  {{- end }}
startupProbe:    # opening a directory cleans up after a crash, which may take up to 60 s
  httpGet: {path: /readyz, port: operator}
  periodSeconds: 1
  failureThreshold: 60
  timeoutSeconds: 2
readinessProbe:
  httpGet: {path: /readyz, port: operator}
  periodSeconds: 5
  failureThreshold: 2
  timeoutSeconds: 2
livenessProbe:
  httpGet: {path: /livez, port: operator}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 2
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: configuration, mountPath: /etc/sluice, readOnly: true}
  {{- if not .Values.open }}
  - {name: rules, mountPath: /etc/sluice-rules, readOnly: true}
  {{- end }}
  {{- if and .Values.tls.secretName (ne .Values.shape "sidecar") }}
  - {name: tls, mountPath: /etc/sluice-tls, readOnly: true}
  {{- end }}
  - {name: temporary, mountPath: /tmp}
  {{- if .Values.cache.enabled }}
  - {name: cache, mountPath: /var/cache/sluice}    # the gateway makes its private directory there
  {{- end }}
  {{- if eq .Values.shape "directory" }}
  - {name: data, mountPath: /var/lib/sluice}
  {{- end }}
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
