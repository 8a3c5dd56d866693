{{- define "larder.name" -}}
{{- if contains "larder" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-larder" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "larder.selector" -}}
app.kubernetes.io/name: larder
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "larder.labels" -}}
{{ include "larder.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Name by which the machines reach each other, behind the pod's own. */ -}}
{{- define "larder.domain" -}}
{{ include "larder.name" . }}-machines.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}
