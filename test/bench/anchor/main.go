// The anchor of the benchmark: VMs become Pods and Pods become status, on controller-runtime with its usual settings.
// It does the part of the work that places VMs and tells of it in Events, and nothing about images, networks or hosts.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const finalizer = "berth.dev/machine"

var gvk = schema.GroupVersionKind{Group: "berth.dev", Version: "v1alpha1", Kind: "VM"}

type reconciler struct {
	client.Client
	events events.EventRecorder
}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vm := &unstructured.Unstructured{}
	vm.SetGroupVersionKind(gvk)
	if err := r.Get(ctx, req.NamespacedName, vm); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	pod := &corev1.Pod{}
	podErr := r.Get(ctx, req.NamespacedName, pod)
	if podErr != nil && !apierrors.IsNotFound(podErr) {
		return ctrl.Result{}, podErr
	}
	if !vm.GetDeletionTimestamp().IsZero() {
		if podErr == nil {
			if pod.DeletionTimestamp.IsZero() {
				return ctrl.Result{}, client.IgnoreNotFound(r.Delete(ctx, pod))
			}
			return ctrl.Result{}, nil
		}
		if controllerutil.RemoveFinalizer(vm, finalizer) {
			return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, vm))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(vm, finalizer) {
		if err := r.Update(ctx, vm); err != nil {
			return ctrl.Result{}, err
		}
	}
	if apierrors.IsNotFound(podErr) {
		spec, _, _ := unstructured.NestedMap(vm.Object, "spec")
		machine, _ := json.Marshal(spec)
		cpu, _, _ := unstructured.NestedInt64(vm.Object, "spec", "cpu")
		mem, _, _ := unstructured.NestedString(vm.Object, "spec", "memory")
		image, _, _ := unstructured.NestedString(vm.Object, "spec", "image")
		rl := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cpu, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse(mem), "berth.dev/slot": resource.MustParse("1")}
		no := false
		pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name, Annotations: map[string]string{"berth.dev/machine": string(machine)}, Labels: map[string]string{"berth.dev/workload": "vm"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
				NodeSelector: map[string]string{"berth.dev/host": "true"},
				Tolerations:  []corev1.Toleration{{Key: "berth.dev/host", Operator: corev1.TolerationOpExists}},
				Containers:   []corev1.Container{{Name: "vm", Image: image, Resources: corev1.ResourceRequirements{Requests: rl, Limits: rl}}}}}
		if err := controllerutil.SetControllerReference(vm, pod, r.Scheme()); err != nil {
			return ctrl.Result{}, err
		}
		if err := r.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, err
		}
	}
	phase := "Pending"
	switch {
	case pod.Status.Phase == corev1.PodRunning:
		phase = "Running"
	case pod.Status.Phase == corev1.PodFailed:
		phase = "Failed"
	case pod.Spec.NodeName != "":
		phase = "Scheduled"
	}
	want := map[string]any{"phase": phase, "nodeName": pod.Spec.NodeName, "podName": req.Name, "observedGeneration": vm.GetGeneration()}
	have, _, _ := unstructured.NestedMap(vm.Object, "status")
	if have["phase"] == want["phase"] && have["nodeName"] == want["nodeName"] && have["observedGeneration"] == want["observedGeneration"] {
		return ctrl.Result{}, nil
	}
	before := vm.DeepCopy()
	vm.Object["status"] = want
	if err := r.Status().Patch(ctx, vm, client.MergeFrom(before)); err != nil {
		return ctrl.Result{}, err
	}
	r.tell(vm, have, pod.Spec.NodeName, phase)
	return ctrl.Result{}, nil
}

// The operator's Events of a VM that is placed and runs, in its words.
func (r *reconciler) tell(vm *unstructured.Unstructured, have map[string]any, node, phase string) {
	if node != "" && have["nodeName"] != node {
		r.events.Eventf(vm, nil, corev1.EventTypeNormal, "Scheduled", "Scheduling", "placed on host %s (attempt %d)", node, 1)
	}
	if phase == "Running" && have["phase"] != phase {
		r.events.Eventf(vm, nil, corev1.EventTypeNormal, "Running", "Running", "the machine runs")
	}
}

func main() {
	kubeconfig := flag.String("config", "", "")
	workers := flag.Int("workers", 16, "")
	metrics := flag.String("metrics", "127.0.0.1:0", "")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		panic(err)
	}
	cfg.QPS = -1
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}}, Metrics: server.Options{BindAddress: *metrics},
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields()}})
	if err != nil {
		panic(err)
	}
	vm := &unstructured.Unstructured{}
	vm.SetGroupVersionKind(gvk)
	if err := ctrl.NewControllerManagedBy(mgr).For(vm).Owns(&corev1.Pod{}).WithOptions(controller.Options{MaxConcurrentReconciles: *workers}).
		Complete(&reconciler{mgr.GetClient(), mgr.GetEventRecorder("berth.dev/operator")}); err != nil {
		panic(err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		panic(err)
	}
}
