/**
 * Defaults of the fields of an emulator's spec. This file imports no schema, because a schema would slow the start of the `berth` command.
 */
export const EMULATOR_DEFAULTS = {
  platform: 'android-36',
  device: 'pixel_9',
  imageType: 'google_apis',
  cpu: 2,
  memory: '4Gi',
  exposure: 'PairedVM',
  whenVMStops: 'Stop',
  deployTimeoutSeconds: 600,
} as const;
