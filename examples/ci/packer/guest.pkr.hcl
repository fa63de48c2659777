# Sets up the guest of a VM that runs already. build.sh starts the VM, and saves its disk afterwards. The guest needs an SFTP server,
# which OpenSSH has. Packer would use scp without ssh_file_transfer_method.
variable "port" {
  type = number
}

variable "key" {
  type = string
}

source "null" "guest" {
  ssh_host                 = "127.0.0.1"
  ssh_port                 = var.port
  ssh_username             = "root"
  ssh_private_key_file     = var.key
  ssh_file_transfer_method = "sftp"
}

build {
  sources = ["source.null.guest"]

  provisioner "shell" {
    inline = ["dnf install --assumeyes git gcc"]
  }
}
