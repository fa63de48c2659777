/** Resource types of Berth's kinds for the client. */
import { type VM, VM_RESOURCE } from '../api/v1alpha1/vm.ts';
import { resource } from '../kube/objects.ts';

export const VMS = resource<VM>(VM_RESOURCE);
