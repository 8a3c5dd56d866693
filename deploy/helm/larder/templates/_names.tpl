{{- define "larder.name" -}}
{{- if contains "larder" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-larder" .Release.Name }}{{ end -}}
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

{{- /* Name of a machine, by its number: the cluster knows it by this for ever. The domains that pods search complete it. */ -}}
{{- define "larder.machine" -}}
{{- $of := index . 0 -}}
{{- $name := include "larder.name" $of -}}
{{- $machine := printf "%s-%v.%s-m.%s.svc:7000" $name (index . 1) $name $of.Release.Namespace -}}
{{- if gt (len $machine) 80 -}}
{{- fail (printf "machines would be called %s, which is longer than the 80 characters that Larder takes: use a shorter release name or namespace" $machine) -}}
{{- end -}}
{{- $machine -}}
{{- end -}}

{{- /* Settings as TOML. Numbers of a values file come as floating point; words and lists are written alike in JSON. */ -}}
{{- define "larder.settings" -}}
{{- range $name, $value := .Values.settings }}
{{ $name }} = {{ if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end -}}
