{{- /* What values.schema.json can't say. */}}
{{- define "sluice.checks" -}}
{{- $config := .Values.config }}
{{- $listen := $config.listen | default dict }}
{{- if and $listen.http (ne .Values.shape "sidecar") }}
{{- fail "config.listen.http is for the shape sidecar; the other shapes have their own address" }}
{{- end }}
{{- if and (hasKey ($listen.https | default dict) "clients") (or .Values.tls.plaintext (eq .Values.shape "sidecar")) }}
{{- fail "config.listen.https.clients needs a certificate: tls.secretName, and the shape gateway or directory" }}
{{- end }}
{{- if and $listen.http (not (include "sluice.isMounted" (list . (trimPrefix "unix:" (toString $listen.http))))) }}
{{- fail (printf "config.listen.http: %s is on no volume; mount one with volumeMounts" $listen.http) }}
{{- end }}
{{- if contains "@" (toString (($config.upstream | default dict).proxy | default "")) }}
{{- fail "config.upstream.proxy: a ConfigMap is no place for a password; set the variable SLUICE_UPSTREAM_PROXY from a Secret (env)" }}
{{- end }}

{{- $cache := ($config.cache | default dict).directory }}
{{- if and $cache .Values.cache.enabled }}
{{- fail "config.cache.directory: cache.enabled sets it" }}
{{- end }}
{{- if and $cache (not (include "sluice.isMounted" (list . $cache))) }}
{{- fail (printf "config.cache.directory: %s is on no volume; the root file system can't be written" $cache) }}
{{- end }}
{{- range $name, $bucket := $config.buckets }}
{{- if and ($bucket.cache | default dict).freshness (not (or $cache $.Values.cache.enabled)) }}
{{- fail (printf "config.buckets.%s.cache.freshness needs cache.enabled" $name) }}
{{- end }}
{{- end }}

{{- $directories := 0 }}
{{- range $name, $bucket := $config.buckets }}
{{- if hasKey ($bucket.s3 | default dict) "secretAccessKey" }}
{{- fail (printf "config.buckets.%s.s3.secretAccessKey: a ConfigMap is no place for a secret; set the variable SLUICE_BUCKETS_%s_S3_SECRETACCESSKEY from a Secret (env)" $name (upper (regexReplaceAll "[^A-Za-z0-9]" $name "_"))) }}
{{- end }}
{{- if hasKey $bucket "directory" }}
{{- $directories = add1 $directories }}
{{- if eq $.Values.shape "gateway" }}
{{- fail (printf "config.buckets.%s.directory: the pods of the shape gateway have no common volume; take the shape directory or sidecar" $name) }}
{{- end }}
{{- with $bucket.directory.path }}
{{- if not (include "sluice.isMounted" (list $ .)) }}
{{- fail (printf "config.buckets.%s.directory.path: %s is on no volume; the root file system can't be written" $name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq .Values.shape "directory") (not $directories) }}
{{- fail "shape directory: none of config.buckets is a directory, so the volume has no use; take the shape gateway" }}
{{- end }}

{{- $limits := (include "sluice.configuration" . | fromYaml).limits | default dict }}
{{- $delay := toString ($limits.drainDelay | default 0) }}
{{- $timeout := $limits.drainTimeout | default "25s" }}
{{- $grace := int64 .Values.terminationGracePeriodSeconds }}
{{- if gt (add (include "sluice.milliseconds" $delay) (include "sluice.milliseconds" $timeout) 8000) (mul $grace 1000) }}
{{- fail (printf "config.limits: drainDelay (%s), drainTimeout (%s) and 8s to close buckets are longer than terminationGracePeriodSeconds (%d)" $delay $timeout $grace) }}
{{- end }}
{{- end }}

{{- /* A duration without zeros in front, which would make it an octal number, in milliseconds. */}}
{{- define "sluice.milliseconds" -}}
{{ mul (regexFind "^[0-9]+" (regexReplaceAll "^0+" . "")) (get (dict "" 0 "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]*$" .)) }}
{{- end }}

{{- /* Whether a path is on a volume that the gateway can write. */}}
{{- define "sluice.isMounted" -}}
{{- $root := index . 0 }}
{{- $path := printf "%s/" (clean (index . 1)) }}
{{- $mounts := ternary (list (dict "mountPath" "/var/lib/sluice")) list (eq $root.Values.shape "directory") }}
{{- range concat $mounts $root.Values.volumeMounts }}
{{- if and (not .readOnly) (hasPrefix (printf "%s/" (clean .mountPath)) $path) }}yes{{ end }}
{{- end }}
{{- end }}
