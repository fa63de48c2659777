import { describe, expect, it } from 'vitest';
import { ConfigError, parseConfig } from './config.ts';

describe('the configuration', () => {
  it('has the published defaults', () => {
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
    const text = messageOf(() => parseConfig(mistakes, 'config.yaml'));
    expect(text.split('\n')).toHaveLength(4);
    expect(text).toMatch(/^config\.yaml: osx_node_platform_quota_pod: /m);
    expect(text).toMatch(/^config\.yaml: vm_shared_disk_enabled: /m);
    expect(text).toMatch(/^config\.yaml: defaults\.memory: is not a quantity such as 4Gi$/m);
    expect(text).toMatch(/surprise/);
  });

  it.each(['certificateFile', 'keyFile'])('refuses %s alone', (field) => {
    const half = { metrics: { [field]: '/etc/berth/tls/file.pem' } };
    expect(messageOf(() => parseConfig(half, 'config.yaml'))).toBe(
      'config.yaml: metrics: certificateFile and keyFile belong together: give both, or neither',
    );
  });
});

function messageOf(call: () => unknown): string {
  try {
    call();
    return '';
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
