# Sets up the guest of a VM that runs already. build.sh starts the VM, and saves its disk afterwards. The guest needs sftp or scp.
variable "port" {
  type = number
}

variable "key" {
  type = string
}

source "null" "guest" {
  ssh_host             = "127.0.0.1"
  ssh_port             = var.port
  ssh_username         = "root"
  ssh_private_key_file = var.key
}

build {
  sources = ["source.null.guest"]

  provisioner "shell" {
    inline = ["dnf install --assumeyes git gcc"]
  }
}
