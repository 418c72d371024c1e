{{- define "formgate.labels" -}}
app.kubernetes.io/name: formgate
app.kubernetes.io/part-of: formgate
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "formgate.selector" -}}
app.kubernetes.io/name: formgate
app.kubernetes.io/component: gateway
{{- end }}

{{- define "formgate.image" -}}
image: {{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* What the pods of nodes and of the job have in common. */}}
{{- define "formgate.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "formgate.container" -}}
{{ include "formgate.image" . }}
envFrom:
  - secretRef:
      name: {{ .Values.secret }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "formgate.mounts" -}}
- name: configuration
  mountPath: /etc/formgate
  readOnly: true
- name: certificate
  mountPath: /etc/formgate-certificate
  readOnly: true
{{- end }}

{{- define "formgate.volumes" -}}
- name: configuration
  configMap:
    name: formgate
- name: certificate
  secret:
    secretName: {{ .Values.certificate }}
    defaultMode: 0440
{{- end }}
