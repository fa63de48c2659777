/**
 * Fields that clients of other platforms send, and that the schemas of the routes do not have. The OpenAPI document publishes one name for
 * each field, because generated clients cannot have two names that differ only in their spelling.
 */
import { DRIVERS_BY_HOST } from '../../api/http/vmspec.ts';
import type { Dialect } from '../http/bodies.ts';

/**
 * The Jenkins plug-in sends `netBoost` with each VM and VM config, and its older templates send `legacyIO` with each VM, even if their users
 * chose nothing. On that platform, the fields choose drivers of the hypervisor.
 */
export const VM_DIALECT: Dialect = {
  aliases: { vm_metadata: 'vmMetadata', customVMMetadata: 'vmMetadata' },
  withoutEffect: { netBoost: DRIVERS_BY_HOST, legacyIO: DRIVERS_BY_HOST },
};
export const VM_CONFIG_DIALECT: Dialect = {
  aliases: { type: 'architecture' },
  withoutEffect: VM_DIALECT.withoutEffect,
};
/** Clients send the command under one of three keys. */
export const POWER_DIALECT: Dialect = { aliases: { action: 'command', operation: 'command' } };
/** Clients send the image of a removal under one of three keys. */
export const CACHE_DIALECT: Dialect = { aliases: { imageName: 'image', imageReference: 'image' } };
export const IMAGE_DIALECT: Dialect = { aliases: { name: 'imageName' } };
export const COPY_DIALECT: Dialect = { aliases: { name: 'imageName', destination: 'imageName' } };
export const EMULATOR_DIALECT: Dialect = { aliases: { deviceProfile: 'device' } };
