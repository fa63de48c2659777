/** Creates the driver for the controller of a Server. */
import type { ServerController } from '../../../api/v1alpha1/server.ts';
import { CALL_MILLISECONDS, type Credentials, type PowerDriver, PowerError } from './driver.ts';
import { IpmiDriver } from './ipmi.ts';
import { RedfishDriver } from './redfish.ts';
import { WebhookDriver } from './webhook.ts';

/**
 * Returns the driver of a controller. A driver keeps no connection between two calls, so it needs no end.
 * @param credentials content of the Secret that `secretName` names. Undefined if the controller names no Secret.
 * @param limitMilliseconds time limit of one call, with all its requests
 * @throws PowerError with `ControllerInvalid` when a field of the controller cannot work, or with `CredentialsMissing` when the controller
 * needs credentials, or cannot take these
 */
export function createDriver(
  controller: ServerController,
  credentials: Credentials | undefined,
  limitMilliseconds = CALL_MILLISECONDS,
): PowerDriver {
  const { redfish, ipmi, webhook } = controller;
  if (redfish !== undefined) {
    return new RedfishDriver(redfish, credentials, limitMilliseconds);
  }
  if (ipmi !== undefined) {
    return new IpmiDriver(ipmi, credentials, limitMilliseconds);
  }
  if (webhook !== undefined) {
    return new WebhookDriver(webhook, credentials, limitMilliseconds);
  }
  const fields = 'spec.controller must have one of redfish, ipmi and webhook';
  throw new PowerError('ControllerInvalid', fields, { isRefusal: true });
}
