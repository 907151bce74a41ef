{{- /* The name of all objects: one release in a cluster, whose daemons would share sockets and state on each node. */}}
{{- define "nri-rdma.name" }}nri-rdma{{ end }}

{{- /* The name of a component's objects: (list $ component). */}}
{{- define "nri-rdma.nameOf" }}{{ include "nri-rdma.name" (index . 0) }}{{ if ne (index . 1) "daemon" }}-{{ index . 1 }}{{ end }}{{ end }}

{{- /* What runs on each node, as a JSON list: the daemon, and before it doctor. */}}
{{- define "nri-rdma.components" }}{{ ternary (list "preflight" "daemon") (list "daemon") .Values.preflight | toJson }}{{ end }}

{{- define "nri-rdma.selector" -}}
app.kubernetes.io/name: nri-rdma
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "nri-rdma.labels" -}}
{{ include "nri-rdma.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "nri-rdma.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* "yes" if the cluster has an API: (list $ api since). Who renders the chart without a cluster (`helm template`) tells helm
the version of Kubernetes at most. Only a cluster's own list of APIs has v1/Pod. */}}
{{- define "nri-rdma.hasApi" }}
{{- $known := (index . 0).Capabilities }}
{{- $later := semverCompare (printf ">=%s.0-0" (index . 2)) $known.KubeVersion.Version }}
{{- if or ($known.APIVersions.Has (index . 1)) (and $later (not ($known.APIVersions.Has "v1/Pod"))) }}yes{{ end }}
{{- end }}

{{- define "nri-rdma.hasPolicies" }}{{ include "nri-rdma.hasApi" (list . "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" "1.36") }}{{ end }}

{{- define "nri-rdma.hasClasses" }}{{ include "nri-rdma.hasApi" (list . "resource.k8s.io/v1/DeviceClass" "1.34") }}{{ end }}

{{- define "nri-rdma.guardResource" -}}
{{ .Values.annotationPrefix }}/guard
{{- end }}

{{- /* What sets the guard up in a node's runtime. The daemon's settings are not on the node: the hook gets them by flags. */}}
{{- define "nri-rdma.installGuard" -}}
nri-rdma install {{ empty .Values.containerdSocket | ternary "crio" "containerd" }} --annotation-prefix {{ .Values.annotationPrefix }} --kubelet-plugins-dir {{ .Values.kubeletRootDir }}/plugins
{{- with .Values.containerdSocket }} --containerd-socket {{ . }}{{ end }}
{{- end }}

{{- /* The names of the pools with door = claims, of all kinds of nodes, as a JSON list. */}}
{{- define "nri-rdma.claimPools" }}
{{- $found := list }}
{{- range $kind := .Values.nodes }}
  {{- range $name, $pool := (include "nri-rdma.config" (list $ $kind) | fromYaml).pools }}
    {{- if eq ($pool.door | default "") "claims" }}{{ $found = append $found $name }}{{ end }}
  {{- end }}
{{- end }}
{{- $found | uniq | sortAlpha | toJson }}
{{- end }}

{{- /* The configuration of a kind of node, as YAML: (list $ kind). */}}
{{- define "nri-rdma.config" }}
{{- $root := index . 0 }}{{ $kind := index . 1 }}
{{- mergeOverwrite (deepCopy ($root.Values.config | default dict)) (deepCopy ($kind.config | default dict)) | toYaml }}
{{- end }}

{{- /* The daemon's variables as YAML; those of `env` count before these. */}}
{{- define "nri-rdma.env" }}
{{- $env := dict
  "NRI_RDMA_ANNOTATION_PREFIX" .Values.annotationPrefix
  "NRI_RDMA_NRI_SOCKET" .Values.nriSocket
  "NRI_RDMA_CONTAINERD_SOCKET" .Values.containerdSocket
  "NRI_RDMA_KUBELET_SOCKET" (printf "%s/pod-resources/kubelet.sock" .Values.kubeletRootDir)
  "NRI_RDMA_DEVICE_PLUGIN_DIR" (printf "%s/device-plugins" .Values.kubeletRootDir)
  "NRI_RDMA_KUBELET_PLUGINS_DIR" (printf "%s/plugins" .Values.kubeletRootDir)
  "NRI_RDMA_CDI_DIRS" (join "," .Values.cdiDirs)
  "NRI_RDMA_DEV_ROOT" "/host/dev"
  "NRI_RDMA_METRICS_ADDRESS" .Values.metrics.address
  "NRI_RDMA_GUARD_HOOK" (printf "%s/bin/nri-rdma-hook" .Values.hostDir)
}}
{{- if eq .Values.guard "resource" }}{{ $_ := set $env "NRI_RDMA_GUARD_RESOURCE" (include "nri-rdma.guardResource" .) }}{{ end }}
{{- with .Values.apiServer.host }}{{ $_ := set $env "KUBERNETES_SERVICE_HOST" . }}{{ end }}
{{- with .Values.apiServer.port }}{{ $_ := set $env "KUBERNETES_SERVICE_PORT" . }}{{ end }}
{{- mergeOverwrite $env .Values.env | toYaml }}
{{- end }}

{{- /* Where the kubelet's probes reach /healthz: an address that means all of them is no address to connect to. */}}
{{- define "nri-rdma.probeHost" }}
{{- $host := regexReplaceAll ":[0-9]+$" .Values.metrics.address "" | trimAll "[]" }}
{{- if has $host (list "" "0.0.0.0" "::") }}127.0.0.1{{ else }}{{ $host }}{{ end }}
{{- end }}

{{- define "nri-rdma.metricsPort" }}{{ regexFind "[0-9]+$" .Values.metrics.address }}{{ end }}

{{- /* The configuration of a kind of node, as TOML: (list $ kind). */}}
{{- define "nri-rdma.toml" }}
{{- $config := include "nri-rdma.config" . | fromYaml }}
{{- range $key, $value := omit $config "pools" }}
{{ $key }} = {{ include "nri-rdma.tomlValue" $value }}
{{- end }}
{{- range $name, $pool := $config.pools }}

[pools.{{ $name | quote }}]
{{- range $key, $value := $pool }}
{{ $key }} = {{ include "nri-rdma.tomlValue" $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* One value. Helm's numbers are floats, so its own toToml writes `shares = 8.0`. */}}
{{- define "nri-rdma.tomlValue" }}
{{- if kindIs "map" . }}
{{- $parts := list }}
{{- range $key, $value := . }}{{ $parts = append $parts (printf "%s = %s" (quote $key) (include "nri-rdma.tomlValue" $value)) }}{{ end }}
{{- printf "{ %s }" (join ", " $parts) }}
{{- else if kindIs "slice" . }}
{{- $parts := list }}
{{- range . }}{{ $parts = append $parts (include "nri-rdma.tomlValue" .) }}{{ end }}
{{- printf "[%s]" (join ", " $parts) }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}
{{- else }}{{ toJson . }}
{{- end }}
{{- end }}

{{- define "nri-rdma.uninstallArguments" }}
{{- $arguments := list "uninstall" "kubernetes" "--namespace" .Release.Namespace "--annotation-prefix" .Values.annotationPrefix "--resource" (include "nri-rdma.guardResource" .) }}
{{- /* A runtime that is set up for a hook there would start no container without it. */}}
{{- if ne .Values.guard "runtime" }}{{ $arguments = concat $arguments (list "--host-dir" .Values.hostDir) }}{{ end }}
{{- range $kind := .Values.nodes }}
  {{- range (include "nri-rdma.config" (list $ $kind) | fromYaml).pools }}
    {{- with .resource }}{{ $arguments = concat $arguments (list "--resource" .) }}{{ end }}
  {{- end }}
{{- end }}
{{- $arguments | toJson }}
{{- end }}

{{- /* What is made before an install or upgrade, in the order of its weight, and is gone after it. */}}
{{- define "nri-rdma.beforeInstall" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}

{{- /* A Job that asks the API server, by its own service account: (list $ name arguments). */}}
{{- define "nri-rdma.jobSpec" -}}
{{- $root := index . 0 }}{{ $name := index . 1 -}}
backoffLimit: 0
activeDeadlineSeconds: 240
template:
  metadata:
    labels: {{- include "nri-rdma.labels" $root | nindent 6 }}
      app.kubernetes.io/component: {{ $name }}
  spec:
    serviceAccountName: {{ include "nri-rdma.nameOf" (list $root $name) }}
    restartPolicy: Never
    hostNetwork: true
    dnsPolicy: ClusterFirstWithHostNet
    enableServiceLinks: false
    nodeSelector: {kubernetes.io/os: linux}
    tolerations: {{- /* not all: a pod that tolerates everything may come to a dead node */}}
      - {key: node-role.kubernetes.io/control-plane, operator: Exists}
    {{- range $root.Values.tolerations }}{{ if .key }}
      - {{ toJson . }}
    {{- end }}{{ end }}
    {{- with $root.Values.imagePullSecrets }}
    imagePullSecrets: {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      seccompProfile: {type: RuntimeDefault}
    containers:
      - name: {{ $name }}
        image: {{ include "nri-rdma.image" $root }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        args: {{ index . 2 }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          runAsNonRoot: true
          runAsUser: 65532
          capabilities: {drop: [ALL]}
        env:
          {{- with $root.Values.apiServer.host }}
          - {name: KUBERNETES_SERVICE_HOST, value: {{ . | quote }}}
          {{- end }}
          {{- with $root.Values.apiServer.port }}
          - {name: KUBERNETES_SERVICE_PORT, value: {{ . | quote }}}
          {{- end }}
{{- end }}
