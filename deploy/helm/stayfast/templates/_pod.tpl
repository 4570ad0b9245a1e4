{{- define "stayfast.pod" -}}
metadata:
  labels:
    {{- include "stayfast.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Changed settings replace the pods, one by one.
    checksum/settings: {{ include "stayfast.settings" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ .Values.serviceAccountName }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "stayfast.graceSeconds" . }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: stayfast
      image: {{ include "stayfast.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      # One process a pod: Kubernetes adds pods.
      args: [serve, --config, /etc/stayfast/stayfast.yaml]
      ports:
        - {name: http, containerPort: {{ include "stayfast.port" . }}}
      {{- if .Values.existingSecret }}
      envFrom:
        - secretRef: {name: {{ .Values.existingSecret | quote }}}
      {{- end }}
      {{- with .Values.extraEnv }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: settings, mountPath: /etc/stayfast, readOnly: true}
        - {name: state, mountPath: /var/lib/stayfast}
        - {name: cache, mountPath: /var/cache/stayfast}
        - {name: tmp, mountPath: /tmp}
        {{- if .Values.tlsSecret }}
        - {name: tls, mountPath: /etc/stayfast-tls, readOnly: true}
        {{- end }}
      # The embedded engine may take half a minute; after that the two others begin.
      startupProbe:
        httpGet: {path: /livez, port: http, scheme: {{ include "stayfast.scheme" . | upper }}}
        periodSeconds: 1
        failureThreshold: 60
      # Alive says nothing of upstreams: a provider's outage must not restart gateways.
      livenessProbe:
        httpGet: {path: /livez, port: http, scheme: {{ include "stayfast.scheme" . | upper }}}
        periodSeconds: 5
        timeoutSeconds: 2
        failureThreshold: 6
      # Ready needs one upstream that has answered with a token; on SIGTERM it fails first.
      readinessProbe:
        httpGet: {path: /readyz, port: http, scheme: {{ include "stayfast.scheme" . | upper }}}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      {{- if .Values.preStopSleepSeconds }}
      lifecycle:
        preStop:
          sleep: {seconds: {{ .Values.preStopSleepSeconds }}}
      {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
  volumes:
    - name: settings
      secret: {secretName: {{ include "stayfast.name" . }}-settings}
    {{- if not .Values.persistence.enabled }}
    - name: state
      emptyDir: {}
    {{- end }}
    - name: cache
      emptyDir: {}
    - name: tmp
      emptyDir: {}
    {{- if .Values.tlsSecret }}
    - name: tls
      secret: {secretName: {{ .Values.tlsSecret | quote }}}
    {{- end }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "stayfast.selector" . | nindent 10 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
