/** Resource types of Berth's kinds for the client. */
import { type Emulator, EMULATOR_RESOURCE } from '../api/v1alpha1/emulator.ts';
import { type Image, IMAGE_RESOURCE } from '../api/v1alpha1/image.ts';
import { type ImageCacheEntry, IMAGE_CACHE_ENTRY_RESOURCE } from '../api/v1alpha1/imagecacheentry.ts';
import { type ISO, ISO_RESOURCE } from '../api/v1alpha1/iso.ts';
import { type VM, VM_RESOURCE } from '../api/v1alpha1/vm.ts';
import { type VMConfig, VM_CONFIG_RESOURCE } from '../api/v1alpha1/vmconfig.ts';
import { resource } from '../kube/objects.ts';

export const VMS = resource<VM>(VM_RESOURCE);
export const VM_CONFIGS = resource<VMConfig>(VM_CONFIG_RESOURCE);
export const IMAGES = resource<Image>(IMAGE_RESOURCE);
export const ISOS = resource<ISO>(ISO_RESOURCE);
export const EMULATORS = resource<Emulator>(EMULATOR_RESOURCE);
export const IMAGE_CACHE_ENTRIES = resource<ImageCacheEntry>(IMAGE_CACHE_ENTRY_RESOURCE);
