{{- define "secret" -}}
{{ .Values.valkey.existingSecret | default (printf "%s-valkey" .Release.Name) }}
{{- end }}

{{- define "labels" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
