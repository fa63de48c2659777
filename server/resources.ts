/** Resource types of Berth's kinds for the client. */
import { type VM, VM_RESOURCE } from '../api/v1alpha1/vm.ts';
import { type VMConfig, VM_CONFIG_RESOURCE } from '../api/v1alpha1/vmconfig.ts';
import { resource } from '../kube/objects.ts';

export const VMS = resource<VM>(VM_RESOURCE);
export const VM_CONFIGS = resource<VMConfig>(VM_CONFIG_RESOURCE);
