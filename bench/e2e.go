package main

import "context"

func endToEndPart(context.Context, *table, string, string) error { return nil }
