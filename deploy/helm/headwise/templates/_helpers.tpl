{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "headwise.selector" -}}
app.kubernetes.io/name: headwise
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "headwise.labels" -}}
{{ include "headwise.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- define "headwise.name" -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}
