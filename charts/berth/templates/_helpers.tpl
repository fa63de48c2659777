{{- define "berth.labels" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels that select the Pods of one component: (list $ "operator") */}}
{{- define "berth.selector" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Reference of an image: (list $ .Values.operator.image) */}}
{{- define "berth.image" -}}
{{- $image := index . 1 -}}
{{- with (index . 0).Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "berth.priorityClass" -}}
{{- if .Values.priorityClass.create -}}
{{ .Values.priorityClass.name }}
{{- else -}}
{{ .Values.config.priorityClassName | default "system-node-critical" }}
{{- end -}}
{{- end }}

{{/* Those of the fields that have a value, as YAML. The argument is a map, for example of `pick`. */}}
{{- define "berth.given" -}}
{{- $given := dict -}}
{{- range $key, $value := . -}}
{{- if $value -}}
{{- $_ := set $given $key $value -}}
{{- end -}}
{{- end -}}
{{- with $given -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}

{{/* Fields of a program's Pods that Kubernetes gets unchanged: (list $ .Values.operator "hostAliases" …) */}}
{{- define "berth.podFields" -}}
{{- $values := index . 1 -}}
{{- $fields := dict "imagePullSecrets" (index . 0).Values.imagePullSecrets "securityContext" $values.podSecurityContext -}}
{{- range slice . 2 -}}
{{- $_ := set $fields . (get $values .) -}}
{{- end -}}
{{- include "berth.given" $fields -}}
{{- end }}

{{/* A probe with the timing of the values: (list "/healthz" .Values.operator.livenessProbe) */}}
{{- define "berth.probe" -}}
{{- merge (dict "httpGet" (dict "path" (index . 0) "port" "health")) (index . 1) | toYaml -}}
{{- end }}

{{/* Labels and annotations of a Service: (list $ "server" .Values.server.service) */}}
{{- define "berth.serviceMetadata" -}}
{{- $own := include "berth.labels" (index . 0) | fromYaml -}}
{{- $labels := merge (dict "app.kubernetes.io/component" (index . 1)) $own (index . 2).labels -}}
{{- include "berth.given" (dict "labels" $labels "annotations" (index . 2).annotations) -}}
{{- end }}

{{/* Fields of the spec of a Service that Kubernetes gets unchanged. */}}
{{- define "berth.serviceFields" -}}
{{- include "berth.given" (omit . "labels" "annotations") -}}
{{- end }}

{{/* Labels and annotations of an object for Prometheus or Grafana: (list $ .Values.metrics.hosts) */}}
{{- define "berth.monitorMetadata" -}}
{{- $labels := merge (deepCopy (index . 1).labels) (include "berth.labels" (index . 0) | fromYaml) -}}
{{- include "berth.given" (dict "labels" $labels "annotations" (index . 1).annotations) -}}
{{- end }}

{{/* Fields of a scrape that the Prometheus Operator gets unchanged. */}}
{{- define "berth.scrapeFields" -}}
{{- include "berth.given" (pick . "scrapeTimeout" "honorLabels" "relabelings" "metricRelabelings") -}}
{{- end }}

{{/* Fields of a PodDisruptionBudget: how many replicas it spares. */}}
{{- define "berth.disruption" -}}
{{- if .minAvailable -}}
minAvailable: {{ toJson .minAvailable }}
{{- else -}}
maxUnavailable: {{ toJson .maxUnavailable }}
{{- end }}
# A Pod that is not Ready must not delay a drain.
unhealthyPodEvictionPolicy: AlwaysAllow
{{- end }}

{{/* Rules of a NetworkPolicy for connections to the API server, which programs reach by its address, and additional rules. */}}
{{- define "berth.egress" -}}
- ports:
    {{- range .apiServer.ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
  {{- with .apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ quote . }}}
    {{- end }}
  {{- end }}
{{- with .extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Rules of a NetworkPolicy for scrapes and for probes of the kubelet, and additional rules. */}}
{{- define "berth.ingress" -}}
- ports: [{port: metrics, protocol: TCP}]
  {{- with .metricsFrom }}
  from: {{- toYaml . | nindent 4 }}
  {{- end }}
- ports: [{port: health, protocol: TCP}]
{{- with .extraIngress }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Priority class of a program: (list $ .Values.operator "system-cluster-critical"), whose last item is the class without any setting. */}}
{{- define "berth.programPriorityClass" -}}
{{- $root := index . 0 -}}
{{- $usual := ternary $root.Values.priorityClass.name (index . 2) $root.Values.priorityClass.create -}}
{{ (index . 1).priorityClassName | default $usual }}
{{- end }}

{{- define "berth.certificateSecret" -}}
{{- if .Values.certificate.certManager.enabled -}}
berth-operator-certificate
{{- else -}}
{{ .Values.certificate.secretName }}
{{- end -}}
{{- end }}

{{- define "berth.serviceName" -}}
berth-operator.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Configuration file of the HTTP API. */}}
{{- define "berth.serverConfig" -}}
{{- $names := list (printf "berth-server.%s.svc" .Release.Namespace) "localhost" -}}
{{- $namespaces := dict "system" .Release.Namespace "default" .Values.namespaces.default "prefix" .Values.namespaces.prefix -}}
{{- $own := dict "namespaces" $namespaces "metrics" (dict "address" ":9443") "health" (dict "address" ":8081") "dpiMaximum" (int .Values.displayDPIMaximum) -}}
{{- with .Values.server.power -}}
{{- if .enabled -}}
{{- $names = concat $names (list (printf "berth-power.%s.svc" $.Release.Namespace)) -}}
{{- $_ := set $own "power" (dict "enabled" true "address" ":8444" "trustedProxies" .trustedProxies) -}}
{{- end -}}
{{- end -}}
{{- $http := dict "address" ":8443" "dnsNames" $names -}}
{{- if .Values.server.certificate.secretName -}}
{{- $_ := set $http "certificateFile" "/etc/berth/tls/tls.crt" -}}
{{- $_ := set $http "keyFile" "/etc/berth/tls/tls.key" -}}
{{- end -}}
{{- $usual := dict "http" $http -}}
{{- toYaml (merge $own (deepCopy .Values.server.config) $usual) -}}
{{- end }}

{{/* Configuration file of the runners for GitHub. */}}
{{- define "berth.runnersConfig" -}}
{{- $served := list -}}
{{- range .Values.runners.namespaces -}}
{{- $served = append $served .name -}}
{{- end -}}
{{- $namespaces := dict "system" .Release.Namespace "default" .Values.namespaces.default "served" $served -}}
{{- $metrics := dict "address" ":9443" "dnsNames" (list (printf "berth-runners-replicas.%s.svc" .Release.Namespace) "localhost") -}}
{{- $defaults := pick (dig "defaults" dict .Values.config) "image" "cpu" "memory" "diskSize" "diskRequest" "architecture" "os" -}}
{{- $same := pick .Values.config "vm_shared_disk_enabled" "diskRequestRatio" -}}
{{- toYaml (merge $same (dict "namespaces" $namespaces "defaults" $defaults "privateServers" .Values.runners.privateServers "clusterCIDRs" .Values.agent.clusterCIDRs "metrics" $metrics "health" (dict "address" ":8081") "logLevel" .Values.runners.logLevel)) -}}
{{- end }}

{{/* Configuration file of the operator. */}}
{{- define "berth.operatorConfig" -}}
{{- $metrics := dict "address" ":8443" "dnsNames" (list (include "berth.serviceName" .) "localhost") -}}
{{- if include "berth.certificateSecret" . -}}
{{- $_ := set $metrics "certificateFile" "/etc/berth/tls/tls.crt" -}}
{{- $_ := set $metrics "keyFile" "/etc/berth/tls/tls.key" -}}
{{- end -}}
{{- $namespaces := dict "system" .Release.Namespace "default" .Values.namespaces.default "prefix" .Values.namespaces.prefix -}}
{{- $roles := pick .Values.roles "defaultDev" "dev" "admin" -}}
{{- $own := dict "namespaces" $namespaces "metrics" $metrics "health" (dict "address" ":8081") "priorityClassName" (include "berth.priorityClass" .) "roles" $roles -}}
{{- $hosts := dict "nodeNameSuffix" .Values.agent.nodeNameSuffix -}}
{{- with include "berth.servingSigner" . -}}
{{- $_ := set $hosts "servingSigner" . -}}
{{- end -}}
{{- $usual := dict "hosts" $hosts -}}
{{- toYaml (merge $own (deepCopy .Values.config) $usual) -}}
{{- end }}

{{/* Port at which the API server reaches the agent on its node. */}}
{{- define "berth.agentPort" -}}
{{ dig "kubelet" "port" 10350 .Values.agent.config | int }}
{{- end }}

{{/* The only namespace that agents of the DaemonSet serve. It is empty if they join with certificates. */}}
{{- define "berth.agentNamespace" -}}
{{- if and .Values.agent.enabled (eq .Values.agent.join "ServiceAccount") -}}
{{ .Values.agent.namespace }}
{{- end -}}
{{- end }}

{{/* Signer of the agents' serving certificates. It is empty if it is the one of Kubernetes. */}}
{{- define "berth.servingSigner" -}}
{{ dig "hosts" "servingSigner" (dig "certificates" "servingSigner" "" .Values.agent.config) .Values.config }}
{{- end }}

{{/* Configuration file of the agent, without the settings that differ between hosts. */}}
{{- define "berth.agentConfig" -}}
{{- $share := .Values.agent.share -}}
{{- $own := dict "dataDirectory" .Values.agent.hostPath "offered" (dict "cpu" $share.cpu "memory" $share.memory) -}}
{{- $namespace := include "berth.agentNamespace" . -}}
{{- $_ := set $own (ternary "kubeconfig" "bootstrapKubeconfig" (ne $namespace "")) "/etc/berth/bootstrap/kubeconfig" -}}
{{- with $namespace -}}
{{- $_ := set $own "namespace" . -}}
{{- end -}}
{{- $usual := dict "kubelet" (dict "clientCAFile" "/etc/berth/bootstrap/ca.crt" "port" (include "berth.agentPort" . | int)) -}}
{{- with .Values.agent.clusterCIDRs -}}
{{- $_ := set $own "clusterCIDRs" . -}}
{{- end -}}
{{- /* The rules for ports that VMs may reserve are set once, for the operator. The agent gets them too. */ -}}
{{- with .Values.config.ports -}}
{{- $_ := set $usual "ports" (deepCopy .) -}}
{{- end -}}
{{- toYaml (merge $own (deepCopy .Values.agent.config) $usual) -}}
{{- end }}

{{/*
Documents of a file below files/, with the namespace and the labels of the release: (list $ "files/rbac/operator.yaml"). Two further items are
a text of the file, and the text that takes its place.
*/}}
{{- define "berth.documents" -}}
{{- $root := index . 0 -}}
{{- $labels := include "berth.labels" $root | fromYaml -}}
{{- range $text := splitList "\n---\n" ($root.Files.Get (index . 1)) -}}
{{- if gt (len $) 3 -}}
{{- $text = replace (index $ 2) (index $ 3) $text -}}
{{- end -}}
{{- $document := $text | replace "berth-system" $root.Release.Namespace | fromYaml -}}
{{- $_ := set $document.metadata "labels" (merge (dict) ($document.metadata.labels | default dict) $labels) -}}
{{- if eq $document.kind "ServiceAccount" -}}
{{- with (get $root.Values (trimPrefix "berth-" $document.metadata.name)).serviceAccount.annotations -}}
{{- $_ := set $document.metadata "annotations" . -}}
{{- end -}}
{{- end }}
---
{{ toYaml $document }}
{{- end }}
{{- end }}

{{/* A quantity of CPU, such as 1, 0.5 or 100m, in thousandths. */}}
{{- define "berth.milliCPU" -}}
{{- $text := toString . -}}
{{- if hasSuffix "m" $text -}}
{{ trimSuffix "m" $text | int }}
{{- else -}}
{{ mulf (float64 $text) 1000 | int }}
{{- end -}}
{{- end }}

{{/* A quantity of memory in bytes. */}}
{{- define "berth.bytes" -}}
{{- /* A large number that is directly converted to text has an exponent. */ -}}
{{- $text := kindIs "string" . | ternary . (int64 . | toString) -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $digits := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $digits $text -}}
{{- if $unit -}}
{{- if not (hasKey $units $unit) -}}
{{- fail (printf "agent.resources.requests.memory, agent.resources.limits.memory and agent.share.memory: not a quantity with Ki, Mi, Gi, Ti, k, M, G or T: %s" $text) -}}
{{- end -}}
{{ mulf (float64 $digits) (get $units $unit) | int64 }}
{{- else -}}
{{ int64 (float64 $digits) }}
{{- end -}}
{{- end }}

{{/* Requests of the agent's Pod: those of the agent itself, and those of the machines, which are no Pods of this node. */}}
{{- define "berth.agentMilliCPU" -}}
{{- $own := (.Values.agent.resources.requests | default dict).cpu | default 0 -}}
{{ add (include "berth.milliCPU" $own | int) (mul 1000 (int .Values.agent.share.cpu)) }}
{{- end }}

{{- define "berth.agentMemory" -}}
{{- $own := (.Values.agent.resources.requests | default dict).memory | default 0 -}}
{{ add (include "berth.bytes" $own | int64) (include "berth.bytes" .Values.agent.share.memory | int64) }}
{{- end }}

{{/* Annotations of the objects of the uninstall hook. The argument is the weight. A failed hook is kept, so that its log can be read. */}}
{{- define "berth.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* "true" if Helm reads the cluster, as in an installation. It is empty in `helm template`. Each cluster has this namespace. */}}
{{- define "berth.readsCluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
true
{{- end -}}
{{- end -}}

{{- /*
"true" if policy berth-pods refuses tolerations without a key in the release's namespace. It is empty if Helm does not read the cluster,
for example in `helm template`, because the namespace can then have the label that allows them.
*/ -}}
{{- define "berth.refusesKeyless" -}}
{{- $labels := dig "metadata" "labels" dict (lookup "v1" "Namespace" "" .Release.Namespace) -}}
{{- if and (ne (get $labels "berth.dev/keyless-tolerations") "true") (include "berth.readsCluster" .) -}}
true
{{- end -}}
{{- end -}}

{{- /*
Version of the API for MutatingAdmissionPolicies: v1, v1beta1 or none. If Helm does not read the cluster, for example in `helm template`,
the versions that it knows are not those of the cluster.
*/ -}}
{{- define "berth.mutatingPolicies" -}}
{{- if ne .Values.mutatingPolicies "auto" -}}
{{ .Values.mutatingPolicies }}
{{- else if not (lookup "v1" "Namespace" "" "kube-system") -}}
none
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
v1beta1
{{- else -}}
none
{{- end -}}
{{- end -}}
