{{- define "stayfast.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "stayfast.selector" -}}
app.kubernetes.io/name: stayfast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "stayfast.labels" -}}
{{ include "stayfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "stayfast.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* drain_grace_s + drain_s + 7 for the farewell, the sleep, and a margin. */}}
{{- define "stayfast.graceSeconds" -}}
{{- $server := .Values.settings.server | default dict -}}
{{- $grace := get $server "drain_grace_s" | default 5 -}}
{{- $drain := get $server "drain_s" | default 30 -}}
{{- add (ceil $grace) (ceil $drain) .Values.preStopSleepSeconds 10 -}}
{{- end -}}

{{- define "stayfast.port" -}}
{{- get (.Values.settings.server | default dict) "port" | default 8090 | int -}}
{{- end -}}

{{/* The settings, with the certificate of tlsSecret. */}}
{{- define "stayfast.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if .Values.tlsSecret -}}
{{- $files := dict "cert_file" "/etc/stayfast-tls/tls.crt" "key_file" "/etc/stayfast-tls/tls.key" -}}
{{- $_ := set $settings "server" (merge (dict "tls" $files) ($settings.server | default dict)) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "stayfast.scheme" -}}
{{- if .Values.tlsSecret -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{- define "stayfast.check" -}}
{{- if not (and .Values.settings.upstreams .Values.settings.routes) -}}
{{- fail "settings: upstreams and routes are missing. They are those of stayfast.yaml." -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled -}}
{{- fail "autoscaling and keda are both enabled: two controllers would set the number of replicas. Enable one." -}}
{{- end -}}
{{- $jobs := .Values.settings.jobs | default dict -}}
{{- if .Values.persistence.enabled -}}
{{- if or .Values.autoscaling.enabled .Values.keda.enabled (gt (int .Values.replicas) 1) -}}
{{- fail "persistence keeps jobs on one disk, which one replica can have: set replicas to 1 without autoscaling, or use settings.jobs.store (PostgreSQL)." -}}
{{- end -}}
{{- if $jobs.store -}}
{{- fail "settings.jobs.store and persistence: jobs are in the database, the disk would be unused. Disable persistence." -}}
{{- end -}}
{{- end -}}
{{- end -}}
