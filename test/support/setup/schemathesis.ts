/** Set-up of projects whose tests send generated requests to the HTTP API. */
import { schemathesis } from '../../../hack/schemathesis/install.ts';

export async function setup(): Promise<void> {
  await schemathesis();
}
