import { describe, expect, it } from 'vitest';
import { ConfigError } from '../../base/config.ts';
import { messageOf } from '../../base/errors.ts';
import { parseConfig } from './config.ts';

describe('the configuration', () => {
  it('has the published defaults for slots, time limits and the size of VMs', () => {
    const config = parseConfig({}, 'config.yaml');
    expect(config).toMatchObject({
      osx_node_platform_quota_pod: 4,
      x86_node_platform_quota_pod: 16,
      vm_shared_disk_enabled: false,
      cache_job_active_deadline_seconds: 10_800,
      cacheJobsPerEntry: 5,
      hostLostTimeoutSeconds: 600,
      defaults: { cpu: 2, memory: '4Gi', deployTimeoutSeconds: 600 },
    });
  });

  it('lists every mistake with its path', () => {
    const mistakes = {
      osx_node_platform_quota_pod: 'four',
      vm_shared_disk_enabled: 'yes',
      defaults: { memory: 'much' },
      surprise: 1,
    };
    expect(() => parseConfig(mistakes, 'config.yaml')).toThrow(ConfigError);
    const text = messageFrom(() => parseConfig(mistakes, 'config.yaml'));
    expect(text.split('\n')).toHaveLength(5);
    expect(text).toMatch(/^config\.yaml is not usable:$/m);
    expect(text).toMatch(/^ {2}osx_node_platform_quota_pod: /m);
    expect(text).toMatch(/^ {2}vm_shared_disk_enabled: /m);
    expect(text).toMatch(/^ {2}defaults\.memory: is not a quantity such as 4Gi$/m);
    expect(text).toMatch(/surprise/);
  });

  it.each(['certificateFile', 'keyFile'])('refuses %s alone', (field) => {
    const half = { metrics: { [field]: '/etc/berth/tls/file.pem' } };
    expect(messageFrom(() => parseConfig(half, 'config.yaml'))).toBe(
      'config.yaml is not usable:\n  metrics: certificateFile and keyFile must be set together',
    );
  });
});

function messageFrom(call: () => unknown): string {
  try {
    call();
    return '';
  } catch (error) {
    return messageOf(error);
  }
}
