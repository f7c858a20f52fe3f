"""The connection plane: accept, handshake, frames and fan-out over one epoll."""
